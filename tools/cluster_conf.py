"""Write `docker/cluster/`, the configuration of docker/compose.yaml; a test compares the files.

The settings are those of `LocalCluster` in tests/support/brokers, with the usual ports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pulsar_retry.standalone.config import Setting, format_conf

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.brokers import cluster_config as conf

FOLDER = Path(__file__).parents[1] / "docker" / "cluster"

#: Where the containers keep data: a writable folder in both images.
DATA = PurePosixPath("/pulsar/data")

METADATA_PORT = 2181
BOOKIE_PORTS = (3181, 3182)
BROKER_PORTS = ((6650, 8080), (6651, 8081))


def files(
    brokers: tuple[tuple[int, int], ...] = BROKER_PORTS,
    more: Mapping[str, Mapping[str, Setting]] | None = None,
) -> dict[str, str]:
    """Return the content of each file, by its name.

    Args:
        brokers: For each broker, the ports of the binary protocol and of the REST API.
        more: More settings, by the name of the broker.
    """
    # Connections from outside the containers arrive at another address than loopback.
    public = {"bindAddress": "0.0.0.0"}
    found = {"metadata": conf.metadata_settings(METADATA_PORT, DATA / "metadata")}
    for number, port in enumerate(BOOKIE_PORTS, start=1):
        name = f"bookie-{number}"
        found[name] = conf.bookie_settings(port, METADATA_PORT, DATA / name, "lo")
    for number, (port, web_port) in enumerate(brokers, start=1):
        name = f"broker-{number}"
        own = conf.broker_settings(port, web_port, METADATA_PORT)
        found[name] = {**own, **public, **(more or {}).get(name, {})}
    head = "# Made by `python tools/cluster_conf.py` from tests/support/brokers/; do not edit.\n"
    texts = {f"{name}.conf": head + format_conf(each) for name, each in found.items()}
    arguments = " \\\n  ".join(conf.setup_arguments(METADATA_PORT, list(brokers)))
    texts["setup.sh"] = f"{head}exec bin/pulsar initialize-cluster-metadata \\\n  {arguments}\n"
    return texts


def main() -> None:
    """Write the files."""
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
