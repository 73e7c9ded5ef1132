"""The process of the embedded Kafka: brings the jars, formats the folder, becomes the broker.

``python -m evertick.embedded.broker CONFIG`` with the fields of ``KafkaConfig`` as JSON. With
``record`` instead it makes the archive of classes that quickens later starts. What it does is said
on standard output, one line each; exit 2 with one line where it cannot.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from evertick.embedded.jars import EmbeddedKafkaError, ensure_jars
from evertick.embedded.kafka import KafkaConfig, command, format_storage


def main() -> int:
    """Run as a program."""
    try:
        jars = ensure_jars(say=_say)
        if sys.argv[1] == "record":
            from evertick.embedded.class_archive import ensure_class_archive

            return 0 if ensure_class_archive(jars, _say) else 1
        fields = json.loads(sys.argv[1])
        config = KafkaConfig(**{**fields, "data_dir": Path(fields["data_dir"])})
        format_storage(config, jars)
        argv = command(config, jars)
    except EmbeddedKafkaError as error:
        print(f"evertick: {error}", flush=True)
        return 2
    os.execv(argv[0], argv)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
