"""Errors, and whose fault they are.

    NnloError
    ├── ConfigurationError   the request is wrong: one sentence, exit code 2, nothing was trained
    ├── TrialError           this trial is wrong: contained in its block, journaled as a failed trial
    ├── JournalError         the journal of a run cannot be trusted: exit code 2, the file is left as it is
    ├── CheckpointError      a checkpoint cannot be trusted: an older one, or a fresh start, is taken
    ├── OutOfTimeError       a preempted job has no time left: it ends at once, exit code 75
    └── ProtocolError        a bug of ours: the job aborts at once

A message says the rule, the value received and the remedy, in one sentence.
"""

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_WRONG_REQUEST = 2
EXIT_PREEMPTED = 75


class NnloError(Exception):
    """Root of all errors raised on purpose."""


class ConfigurationError(NnloError):
    """The user asked for something that cannot be: the message is shown as it is, exit code 2."""


class TrialError(NnloError):
    """A trial cannot be trained: the message is its reason in the journal, the search goes on."""


class JournalError(NnloError):
    """The journal is damaged, or is not one of ours: exit code 2, the file is left as it is."""


class CheckpointError(NnloError):
    """A checkpoint is incomplete or damaged."""


class OutOfTimeError(NnloError):
    """A preempted job has no time left to end in good order: it ends at once, what is on disk is enough."""


class ProtocolError(NnloError):
    """A message or transition that our own rules forbid: always a bug, never a user's mistake."""
