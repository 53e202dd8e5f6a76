"""How FLARE's processes are configured. Written anew at every start, beside the kit.

Who may do what: a site runs nothing but Konsil's sessions, signed by the admin; nobody looks into
a site's files or logs, nobody restarts it, and no log is streamed to the server.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from konsil.deploy.deployment import ORGANISATION, ROLE
from konsil.deploy.flare.job import CONTROLLER, EXECUTOR
from konsil.deploy.kit import Kind, Kit
from konsil.files import write_text

KEPT_SESSIONS = 20  # whose logs are kept
HEARTBEAT = 4  # seconds between two signs of life of a site
DEAD_AFTER = 30  # seconds without one: then a site counts as gone
RETRY_AFTER = 30.0  # seconds without progress of a transfer: then it is tried again
# FLARE's defaults wait for a minute and more where a session can simply be repeated.
ENVIRONMENT = {
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "5",
    "NVFLARE_DEAD_CLIENT_CHECK_LEAD_TIME": "5",
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10",
    "NVFLARE_TASK_CHECK_INTERVAL": "1",
    "NVFLARE_JOB_HEARTBEAT_INTERVAL": "4",
    "NVFLARE_END_RUN_READINESS_TIMEOUT": "1",
    "NVFLARE_GET_TASK_TIMEOUT": str(RETRY_AFTER),
    "NVFLARE_SUBMIT_TASK_RESULT_TIMEOUT": str(RETRY_AFTER),
    "MALLOC_ARENA_MAX": "2",  # one a thread keeps gigabytes that nobody uses
}
TALKATIVE = (  # who came, who went, who was let in
    "nvflare.fuel.f3.sfm.conn_manager",
    "nvflare.private.fed.server.client_manager",
    "nvflare.private.fed.server.job_runner",
)
SERVER_RIGHTS = ("submit_job", "manage_job", "view", "get_job_log", "download_job_components")
SITE_RIGHTS = ("submit_job", "manage_job")
OURS, FLARE = "konsil.deploy.flare", "nvflare.app_common"
STORAGE = f"{FLARE}.storages.filesystem_storage.FilesystemStorage"
MANAGER = f"{FLARE}.resource_managers.passthrough_resource_manager.PassthroughResourceManager"
CONSUMER = f"{FLARE}.resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer"


def prepare(kit: Kit, folder: Path) -> Path:
    """The folder that FLARE works in: the kit's identity, our configuration."""
    _tidy(folder)
    local, startup = folder / "local", folder / "startup"
    local.mkdir(parents=True, exist_ok=True)
    (folder / "transfer").mkdir(exist_ok=True)
    shutil.rmtree(startup, ignore_errors=True)
    startup.mkdir()
    for file in (kit.folder / "startup").iterdir():  # no second copy of a private key
        (startup / file.name).symlink_to(file)
    files = {
        **_resources(kit.kind, folder),
        "log_config.json": _logging(),
        "comm_config.json": {"allow_adhoc_conns": False, "backbone_conn_gen": 2},
    }
    for name, content in files.items():
        write_text(local / name, json.dumps(content, indent=1))
    return folder


def _resources(kind: Kind, folder: Path) -> dict[str, Any]:
    """What a party is made of, and what it lets others do. What is not named is not allowed."""
    if kind == "admin":
        own = {"idle_timeout": 86400.0, "login_timeout": 10.0, "authenticate_msg_timeout": 5.0}
        return {"resources.json": {"format_version": 1, "admin": own}}
    allowed, rights, own = (
        (CONTROLLER, SERVER_RIGHTS, _server(folder))
        if kind == "server"
        else (EXECUTOR, SITE_RIGHTS, _site())
    )
    enforced = {"class_list_enforcement_mode": "enforce", "class_allow_list": [allowed]}
    permissions = {ROLE: dict.fromkeys(rights, "any")}
    return {
        "resources.json": {"format_version": 2, **enforced, **own},
        "authorization.json": {"format_version": "1.0", "permissions": permissions},
    }


def _tidy(folder: Path) -> None:
    """Forget the oldest sessions: FLARE keeps what is left of each for ever."""
    left = [path for path in folder.glob("*-*-*-*-*") if path.is_dir()]
    for path in sorted(left, key=lambda path: path.stat().st_mtime)[:-KEPT_SESSIONS]:
        shutil.rmtree(path, ignore_errors=True)


def arguments(kit: Kit, folder: Path) -> list[str]:
    """What FLARE's server or client is started with."""
    kind = "server" if kit.kind == "server" else "client"
    own = [] if kit.kind == "server" else [f"uid={kit.party}", f"heart_beat_interval={HEARTBEAT}"]
    return [
        *(kind, "-m", str(folder), "-s", f"fed_{kind}.json"),
        *("--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config", *own),
    ]


def _server(folder: Path) -> dict[str, Any]:
    jobs = folder / "jobs"
    jobs.mkdir(exist_ok=True)  # FLARE's scheduler dies if it is not there
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    own = {
        "admin_storage": "transfer",
        "max_num_clients": 1000,
        "heart_beat_timeout": DEAD_AFTER,
        "check_engine_frequency": 0.5,  # how soon a session notices that it is over
        "admin_timeout": 10.0,
    }
    return {
        "servers": [own],
        "components": [
            _component("job_scheduler", f"{OURS}.supervisor.Scheduler"),
            _component("job_manager", manager, uri_root=str(jobs), job_store_id="job_store"),
            _component("job_store", STORAGE),
            _component("process_launcher", f"{OURS}.main.ServerLauncher"),
            _component("supervisor", f"{OURS}.supervisor.Supervisor"),
        ],
    }


def _site() -> dict[str, Any]:
    times = {"retry_timeout": 30, "communication_timeout": RETRY_AFTER, "maint_msg_timeout": 10.0}
    return {
        "allow_log_streaming": False,
        "client": times,
        "app_validator": {"path": f"{OURS}.site.OnlyOurs", "args": {}},
        "components": [
            _component("resource_manager", MANAGER),
            _component("resource_consumer", CONSUMER),
            _component("process_launcher", f"{OURS}.main.SiteLauncher"),
            _component("reporter", f"{OURS}.site.Reporter"),
        ],
    }


def _component(name: str, path: str, **settings: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": settings}


def _logging() -> dict[str, Any]:
    """Files that do not grow for ever, and nothing on the terminal."""
    handler = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "plain",
        "filename": "log.txt",
        "maxBytes": 10_000_000,
        "backupCount": 5,
    }
    levels = {"nvflare": "WARNING"} | dict.fromkeys(TALKATIVE, "INFO")  # else ten lines a message
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "handlers": {"file": handler},
        "loggers": {
            "root": {"level": "INFO", "handlers": ["file"]},
            **{name: {"level": level} for name, level in levels.items()},
        },
    }
