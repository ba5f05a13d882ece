"""What the pages for operators name exists: settings that load, commands, metrics, and pages that are linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from railweave.cli import reference, settings_page
from railweave.jobs.measures import Measures
from railweave.runtime.metrics import Metrics
from railweave.runtime.settings import Settings, load_settings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*(DOCS / "operate").glob("*.md"), *(DOCS / "concepts").glob("*.md")])


@pytest.fixture(scope="module")
def commands() -> str:
    return reference.text()


@pytest.fixture(scope="module")
def settings() -> set[str]:
    settings_page.text()
    return {row.key for row in Settings.describe()}


def spans(page: Path) -> list[str]:
    """What stands between backticks, outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_page_names_exists(page: Path, settings: set[str]) -> None:
    sections = {key.partition(".")[0] for key in settings} - {"agent"}
    for span in spans(page):
        key = span.partition(":")[0]
        is_file = key.endswith((".conf", ".yaml"))  # Slurm's topology.conf is no setting of ours
        if not is_file and re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", key) and key.partition(".")[0] in sections:
            assert any(known == key or known.startswith(f"{key}.") for known in settings), span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path, commands: str) -> None:
    for span in spans(page):
        words = span.split()
        if words[0] != "railweave" or len(words) < 2 or not words[1].islower():
            continue
        names = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
        assert f"## `railweave {' '.join(names)}`" in commands or f"## `railweave {names[0]}`" in commands, span
        for option in re.findall(r"--[a-z-]+", span):
            assert option in commands, span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_that_a_page_names_is_exported(page: Path) -> None:
    metrics = Metrics(process_metrics=False)
    exposed = metrics.exposition().decode()
    own = {family.name for family in Measures(metrics, lambda: None).describe()}
    for span in spans(page):
        if match := re.match(r"(railweave_[a-z_]+)(\{|$)", span):
            name = match[1]
            assert re.search(rf"\b{name}\b", exposed) or name.removesuffix("_total") in own, span


def test_the_settings_of_the_page_load(tmp_path: Path) -> None:
    for name in settings_page.SERVICES:
        settings_page.find_service(name)
    block = re.search(r"^```yaml\n(.*?)^```$", (DOCS / "operate" / "running.md").read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    file = tmp_path / "railweave.yaml"
    file.write_text(block[1])
    loaded = load_settings(config=file, environ={"RAILWEAVE_NATS__PASSWORD": "x"})
    assert (loaded.nats.servers[0], loaded.service.http_port) == ("nats://nats-1:4222", 9470)
