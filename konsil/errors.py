"""Everything Konsil raises on purpose.

    KonsilError
    |-- ConfigError          an experiment file or a --set that cannot be meant
    |-- DataError            a federation that cannot be trained on
    |-- RunError             a run folder that cannot be written, resumed or shown
    |-- StateError           a checkpoint, site state or super model that cannot be trusted
    |-- RoundFailed          too few sites answered, or the policy says stop
    `-- UploadRefused        one site's upload, refused by name

Each message says what is wrong, where (file, site, round), and what to do.
"""

import difflib


class KonsilError(Exception):
    """Base of every error that is shown to a person without a traceback."""


class ConfigError(KonsilError):
    """An experiment file or an override that cannot be meant."""


class DataError(KonsilError):
    """A federation that cannot be trained on."""


class RunError(KonsilError):
    """A run folder that cannot be written, resumed or shown."""


class StateError(KonsilError):
    """A checkpoint, a site's state or a super model that cannot be trusted."""


class RoundFailed(KonsilError):
    """A round that cannot be completed under the experiment's policy."""


class UploadRefused(KonsilError):
    """One site's upload, refused before it touches a sum."""


def suggestion(key: str, allowed: list[str]) -> str:
    """What may stand in the place of a key, the one that was probably meant first."""
    known = sorted(allowed)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}allowed here: {', '.join(known)}"
