"""Loaded by the process that the local engine's trials are forked from, and by nobody else.

Only imports: a thread pool that runs before a fork does not exist after it.
"""

import os
import signal

import torch._dynamo  # noqa: F401 (torch's optimizers import it at their first step)

import stochbatch.studies.engine  # noqa: F401

# The server starts with SIGINT and SIGTERM blocked, and ends with its last client. Its children,
# which may be another program's, can be terminated.
os.register_at_fork(
    after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
)
