"""Where settings come from, and which source wins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from railweave.runtime.settings import (
    NatsSettings,
    Section,
    SectionRegistry,
    Settings,
    SettingsError,
    load_settings,
)


class CacheSettings(Section):
    weights: dict[str, int] = Field(default={"size": 1}, description="weight of each score")
    roots: tuple[Path, ...] = Field(default=(), description="where datasets lie")
    key: SecretStr | None = Field(default=None, description="key of the store")


@pytest.fixture
def registry() -> SectionRegistry:
    made = SectionRegistry()
    made.register("cache", CacheSettings)
    return made


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def problems(**arguments: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**{"environ": {}, **arguments})  # type: ignore[arg-type]
    return str(caught.value)


def test_everything_has_a_default() -> None:
    settings = load_settings(environ={})
    assert settings.nats.servers == ("nats://127.0.0.1:4222",)
    assert settings.service.http_host == "127.0.0.1"
    assert settings.service.http_port == 0


@pytest.mark.parametrize(
    ("sources", "level"),
    [
        ((), "info"),
        (("program",), "critical"),
        (("program", "file"), "error"),
        (("program", "file", "environment"), "warning"),
        (("program", "file", "environment", "flag"), "debug"),
        (("file", "flag"), "debug"),
    ],
)
def test_flags_win_over_environment_over_file_over_defaults(
    sources: tuple[str, ...], level: str, tmp_path: Path
) -> None:
    settings = load_settings(
        config=write(tmp_path / "railweave.yaml", "log: {level: error}") if "file" in sources else None,
        environ={"RAILWEAVE_LOG__LEVEL": "warning"} if "environment" in sources else {},
        flags=["log.level=debug"] if "flag" in sources else [],
        defaults={"log": {"level": "critical"}} if "program" in sources else None,
    )
    assert settings.log.level == level


def test_sources_are_laid_over_each_other_key_by_key(tmp_path: Path) -> None:
    path = write(tmp_path / "railweave.yaml", "nats: {user: jobs, tls: {enabled: true, hostname: nats.example}}")
    settings = load_settings(
        config=path,
        environ={"RAILWEAVE_NATS__PASSWORD": "hunter2", "RAILWEAVE_NATS__TLS__CA_FILE": "/etc/ca.pem"},
        flags=["nats.servers=tls://a:4222, tls://b:4222"],
    )
    assert settings.nats.user == "jobs"
    assert settings.nats.password is not None
    assert settings.nats.password.get_secret_value() == "hunter2"
    assert settings.nats.tls.hostname == "nats.example"
    assert settings.nats.tls.ca_file == Path("/etc/ca.pem")
    assert settings.nats.servers == ("tls://a:4222", "tls://b:4222")


def test_the_file_may_be_named_in_the_environment_and_a_flag_names_another(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "log: {level: error}")
    other = write(tmp_path / "other.yaml", "log: {level: debug}")
    assert load_settings(environ={"RAILWEAVE_CONFIG": str(one)}).log.level == "error"
    assert load_settings(environ={"RAILWEAVE_CONFIG": str(one)}, config=other).log.level == "debug"


def test_a_section_without_content_means_its_defaults(tmp_path: Path) -> None:
    assert load_settings(environ={}, config=write(tmp_path / "s.yaml", "redis:\nlog:\n")).redis.enabled


def test_an_empty_file_means_all_defaults(tmp_path: Path) -> None:
    assert load_settings(environ={}, config=write(tmp_path / "s.yaml", "# nothing\n")).log.level == "info"


def test_an_empty_variable_takes_an_optional_setting_away(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", "nats: {user: jobs}")
    assert load_settings(config=path, environ={"RAILWEAVE_NATS__USER": ""}).nats.user is None


@pytest.mark.parametrize("name", ["RAILWEAVE_GPUS", "RAILWEAVE_CONFIG_DIR", "railweaver__x"])
def test_variables_of_others_are_not_settings(name: str) -> None:
    load_settings(environ={name: "2"})


def test_a_service_reads_its_own_section(registry: SectionRegistry) -> None:
    settings = load_settings(
        registry=registry,
        environ={"RAILWEAVE_CACHE__WEIGHTS": '{"size": 3}', "RAILWEAVE_CACHE__ROOTS": "/a,/b"},
        flags=["cache.weights.age=2"],
    )
    assert settings.section(CacheSettings).weights == {"size": 3, "age": 2}
    assert settings.section(CacheSettings).roots == (Path("/a"), Path("/b"))


def test_settings_without_sources_have_the_defaults_of_every_section() -> None:
    assert Settings().section(CacheSettings).weights == {"size": 1}


def test_a_section_registered_after_loading_is_a_mistake_and_not_its_defaults() -> None:
    with pytest.raises(LookupError, match="find services first"):
        load_settings(environ={"RAILWEAVE_CACHE__ROOTS": "/a"}, registry=SectionRegistry()).section(CacheSettings)


def test_the_section_of_a_service_that_does_not_run_here_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", "topology: {anything: [1, 2]}")
    # A registry of its own: other tests of the same process may have found the services and their sections.
    load_settings(config=path, environ={"RAILWEAVE_GPU__X": "1"}, flags=["agent.y=2"], registry=SectionRegistry())


def test_a_section_is_read_by_one_model_only(registry: SectionRegistry) -> None:
    registry.register("cache", CacheSettings)
    with pytest.raises(ValueError, match="already read by CacheSettings"):
        registry.register("cache", NatsSettings)


def test_a_setting_without_default_is_refused_when_registered() -> None:
    class Bad(Section):
        path: Path

    with pytest.raises(ValueError, match="needs defaults for path"):
        SectionRegistry().register("bad", Bad)


class TestUnknownKeys:
    def test_a_misspelt_variable_is_named_with_the_nearest_key(self) -> None:
        said = problems(environ={"RAILWEAVE_NATS__SERVRES": "nats://a"})
        assert "unknown setting nats.servres; did you mean nats.servers?" in said
        assert "RAILWEAVE_NATS__SERVRES" in said

    def test_a_misspelt_flag_is_named_with_the_nearest_key(self) -> None:
        assert "did you mean log.level?" in problems(flags=["log.levle=info"])

    def test_a_misspelt_key_deep_in_a_file_is_named_with_the_nearest_key(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.yaml", "nats: {tls: {hostnam: x}}")
        said = problems(config=path)
        assert "did you mean nats.tls.hostname?" in said
        assert str(path) in said

    def test_a_misspelt_section_is_named_with_the_nearest_one(self, tmp_path: Path) -> None:
        assert "did you mean topology?" in problems(config=write(tmp_path / "s.yaml", "toplogy: {}"))

    def test_all_unknown_keys_are_told_at_once(self) -> None:
        said = problems(flags=["log.levle=info", "redis.ulr=x"])
        assert "log.levle" in said
        assert "redis.ulr" in said

    def test_nothing_near_lists_the_sections(self) -> None:
        assert "sections are agent, cache" in problems(flags=["zzz.qqq=1"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats: [", "not valid YAML at line 1"),
        ("- a\n- b\n", "must be a mapping of sections"),
        ("log: {level: info}\nlog: {level: debug}", "key log twice"),
        ("1: {a: b}", "a key that is not text"),
        ("nats: 5", "nats: "),
        ("nats: !!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_a_malformed_file_says_what_is_wrong(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in problems(config=write(tmp_path / "s.yaml", text))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    assert "No such file" in problems(config=tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("service.http_port=70000", "less than or equal to 65535 (from --set service.http_port)"),
        ("log.level=loud", "log.level"),
        ("nats.servers=http://a", "must begin with one of nats://"),
        ("nats.servers=nats://u:p@a", "no credentials in a URL"),
        ("redis.url=redis://:pw@a/0", "use redis.user and redis.password"),
        ("nats.password=x", "a password without a user"),
        ("nats.tls.cert_file=/c", "cert_file and key_file go together"),
        ("nats=x", "is a section"),
        ("nats.tls=x", "is a section"),
        ("nats", "write it as key=value"),
        ("nats.servers=[1", "not valid JSON"),
    ],
)
def test_a_value_that_does_not_fit_names_its_key(flag: str, expected: str) -> None:
    assert expected in problems(flags=[flag])


def test_two_identities_for_nats_are_refused() -> None:
    assert "more than one identity: user, token" in problems(flags=["nats.user=a", "nats.token=b"])


class TestSecrets:
    def test_a_secret_is_never_in_an_error(self) -> None:
        said = problems(flags=["nats.password=hunter2", "redis.url=redis://x:hunter2@h"])
        assert "hunter2" not in said

    def test_a_secret_in_a_broken_file_is_not_quoted(self, tmp_path: Path) -> None:
        path = write(tmp_path / "s.yaml", "nats:\n  password: 'hunter2\n  user: [a\n")
        assert "hunter2" not in problems(config=path)

    def test_a_secret_is_never_in_the_printed_settings(self) -> None:
        settings = load_settings(environ={}, flags=["nats.user=a", "nats.password=hunter2"])
        assert "hunter2" not in repr(settings)


def test_the_reference_has_every_setting_with_its_variable(registry: SectionRegistry) -> None:
    rows = {row.key: row for row in Settings.describe(registry)}
    assert rows["nats.tls.ca_file"].variable == "RAILWEAVE_NATS__TLS__CA_FILE"
    assert rows["nats.servers"].default == "nats://127.0.0.1:4222"
    assert rows["redis.enabled"].default == "true"
    assert rows["service.instance"].default == "(computed)"
    assert rows["cache.key"].kind == "SecretStr | None"
    assert all(row.description for row in rows.values())
