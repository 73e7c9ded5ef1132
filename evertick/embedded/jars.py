"""The jars of Apache Kafka, resolved by jgo from Maven Central into the user's cache folder.

A second start, or a second clone, finds them there and touches no network. Downloads are made
in a staging folder under a lock, then the whole folder is renamed into place; its manifest of
names and sizes is checked on every use. So neither a kill in the middle nor two processes at
once can leave a half download that is taken for whole.
"""

import fcntl
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import platformdirs

KAFKA_VERSION = "4.4.0"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_ATTEMPTS = 3
_HTTP_TIMEOUT_S = 20
_LOCK_TIMEOUT_S = 600.0

Say = Callable[[str], None]


class EmbeddedKafkaError(RuntimeError):
    """The embedded Kafka cannot be prepared; the message is one line with the fix."""


def cache_root() -> Path:
    """The folder of downloads shared by all clones; EVERTICK_CACHE_DIR overrides it."""
    override = os.environ.get("EVERTICK_CACHE_DIR")
    return (
        Path(override).expanduser() if override else Path(platformdirs.user_cache_dir("evertick"))
    )


@contextmanager
def exclusive(lock: Path, say: Say) -> Iterator[None]:
    """Hold `lock` (flock: freed by the kernel when its holder dies) or wait up to 10 min."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    told = False
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise EmbeddedKafkaError(
                        f"another process has held {lock} for {_LOCK_TIMEOUT_S:.0f} s: "
                        "end it, then start again"
                    ) from error
                if not told:
                    say("waiting for another process that is preparing Kafka")
                    told = True
                time.sleep(0.1)
        yield


def ensure_jars(cache_dir: Path | None = None, say: Say = lambda line: None) -> list[Path]:
    """The paths of all jars of Kafka, sorted; downloads them (45 jars, 45 MB) if not there.

    `cache_dir` defaults to `cache_root()`; `say` receives progress, one line each.
    Raises EmbeddedKafkaError if they cannot be downloaded or stored.
    """
    root = (cache_dir or cache_root()).absolute()
    if ":" in str(root):
        raise EmbeddedKafkaError(
            f"the cache folder {root} has a ':' in its name, which a Java class path cannot "
            "hold: set EVERTICK_CACHE_DIR to another folder"
        )
    home = root / f"kafka-{KAFKA_VERSION}"
    if jars := _verified(home):
        return jars
    try:
        with exclusive(root / f"{home.name}.lock", say):
            if jars := _verified(home):  # the process before us has brought them
                return jars
            staging = root / f"{home.name}.partial"
            _fill(staging, say)
            shutil.rmtree(home, ignore_errors=True)
            staging.rename(home)
    except OSError as error:
        raise EmbeddedKafkaError(
            f"cannot store Kafka's jars in {root}: {error}: free 200 MB there or set "
            "EVERTICK_CACHE_DIR to another folder"
        ) from error
    return _verified(home)


def _verified(home: Path) -> list[Path]:
    """The jars that the manifest of `home` names, or none if any is missing or of wrong size."""
    try:
        sizes: dict[str, int] = json.loads((home / "manifest.json").read_text())
        jars = [home / "jars" / name for name in sorted(sizes)]
        return jars if all(jar.stat().st_size == sizes[jar.name] for jar in jars) else []
    except (OSError, ValueError, AttributeError):
        return []  # no manifest, or an unreadable one: the same as no jars


def _fill(staging: Path, say: Say) -> None:
    """Make `staging` anew: jars/, then manifest.json. Retries, for networks that hiccup."""
    import requests  # as jgo below: only who downloads pays for it

    for attempt in range(1, _ATTEMPTS + 1):
        shutil.rmtree(staging, ignore_errors=True)
        (staging / "jars").mkdir(parents=True)
        try:
            _download(staging, say)
            break
        # RuntimeError is what jgo raises for an artifact that no repository has.
        except (requests.RequestException, RuntimeError, zipfile.BadZipFile) as error:
            if attempt == _ATTEMPTS:
                shutil.rmtree(staging, ignore_errors=True)
                reason = str(error).splitlines()[0][:300]
                raise EmbeddedKafkaError(
                    f"cannot download Apache Kafka {KAFKA_VERSION} from Maven Central ({reason}): "
                    "connect this host, set HTTPS_PROXY, copy the folder "
                    f"{staging.with_suffix('')} from a host that has it, or point "
                    "EVERTICK_KAFKA__BOOTSTRAP at a running Kafka"
                ) from error
            say(f"download of Kafka failed, trying again ({attempt} of {_ATTEMPTS})")
            time.sleep(attempt)
    sizes = {jar.name: jar.stat().st_size for jar in (staging / "jars").iterdir()}
    (staging / "manifest.json").write_text(json.dumps(sizes, indent=1, sort_keys=True))


def _download(staging: Path, say: Say) -> None:
    """Resolve the coordinates with a repository inside `staging`; leave their jars in jars/.

    jgo's `build` is not used: to sort jars into modules it fetches a second JDK.
    """
    from jgo.maven import MavenContext

    say(f"resolving Apache Kafka {KAFKA_VERSION}")
    repository = staging / "repository"
    context = MavenContext(repo_cache=repository, timeout=_HTTP_TIMEOUT_S)
    inputs, transitive = context.resolver.resolve(
        [context.create_dependency(coordinate) for coordinate in COORDINATES]
    )
    needed = inputs + [d for d in transitive if d.scope in ("compile", "runtime")]
    say(f"downloading {len(needed)} jars of Apache Kafka")
    with ThreadPoolExecutor(max_workers=8) as pool:
        for path in pool.map(lambda dependency: dependency.artifact.resolve(), needed):
            with zipfile.ZipFile(path) as archive:
                if broken := archive.testzip():
                    raise zipfile.BadZipFile(f"{path.name}: {broken} is damaged")
            path.rename(staging / "jars" / path.name)
    shutil.rmtree(repository)
