"""What is wrong with a study."""


class StudyError(ValueError):
    """A study that cannot be: one line that says what was given and what is allowed."""
