#!/bin/bash
#SBATCH --job-name=comparison
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=12:00:00
#SBATCH --exclusive

source /shared/venv/bin/activate
export RAY_AUTH_MODE=token  # after: ray get-auth-token --generate
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname --ip-address | cut -d ' ' -f 1)

srun ray symmetric-run --address "$address:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="$SLURM_GPUS_ON_NODE" -- \
    stochbatch study run comparison --scale paper --engine ray --address auto \
    --gpus-per-trial 0.25 --root /shared/runs --data-root /shared/data
