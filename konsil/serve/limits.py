"""What a server takes from those who ask, and no more."""

from dataclasses import dataclass

MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """How much of what one server takes at once, and for how long."""

    upload_mb: int = 200  # of one question, all its files together
    upload_seconds: float = 120.0  # until the whole question has arrived
    seconds: float = 60.0  # of work on one question; a worker that takes longer is ended
    memory_mb: int = 4096  # that a worker may take beyond the loaded model
    waiting: int = 16  # questions that wait while all workers are busy; more are sent away
    files: int = 2000  # of one question: the slices of a DICOM series
    sessions: int = 8  # volumes that MONAI Label's clients have uploaded to ask about again
    session_seconds: float = 3600.0  # until such a volume is forgotten
