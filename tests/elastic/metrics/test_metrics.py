"""`metrics`: the same calls as PyTorch's, and the same values at the end of them.

A test that takes `metrics` runs against both.
"""

from __future__ import annotations

import re
import time
from importlib import import_module
from typing import Any

import pytest

from holdfast.elastic import metrics as ours

Module = Any


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def metrics(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Module:
    module = import_module(f"{request.param}.metrics")
    monkeypatch.setattr(module.api, "_metrics_map", {})
    monkeypatch.setattr(module.api, "_default_metrics_handler", module.NullMetricHandler())
    return module


def kept_by(metrics: Module, group: str | None = "torchelastic") -> list[Any]:
    """A list that fills with what is put into a group."""
    kept: list[Any] = []

    class Keeping(metrics.MetricHandler):  # type: ignore[misc]
        def emit(self, metric_data: Any) -> None:
            kept.append(metric_data)

    metrics.configure(Keeping(), group)
    return kept


def pairs(kept: list[Any]) -> list[tuple[str, Any]]:
    return [(data.name, data.value) for data in kept]


def test_a_metric_reaches_the_handler_of_its_group(metrics: Module) -> None:
    default, own, mine = (kept_by(metrics, g) for g in (None, "torchelastic", "mine"))
    before = time.time()
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "mine")
    metrics.put_metric("c", 3, metric_group="other")
    assert [pairs(kept) for kept in (own, mine, default)] == [[("a", 1)], [("b", 2)], [("c", 3)]]
    assert [kept[0].group_name for kept in (own, mine, default)] == [
        "torchelastic",
        "mine",
        "other",
    ]
    assert before <= own[0].timestamp <= time.time()


def test_metric_data_is_a_tuple_with_names(metrics: Module) -> None:
    data = metrics.MetricData(1.5, "group", "name", 3)
    assert data == (1.5, "group", "name", 3)
    assert data._fields == ("timestamp", "group_name", "name", "value")
    assert data == metrics.MetricData(timestamp=1.5, group_name="group", name="name", value=3)


def test_a_stream_has_its_group_and_handler(metrics: Module) -> None:
    kept = kept_by(metrics, "mine")
    stream = metrics.getStream("mine")
    assert isinstance(stream, metrics.api.MetricStream)
    stream.add_value("a", 1)
    assert (stream.group_name, pairs(kept)) == ("mine", [("a", 1)])
    assert isinstance(metrics.getStream("other").handler, metrics.NullMetricHandler)


def test_the_console_gets_a_line(metrics: Module, capsys: pytest.CaptureFixture[str]) -> None:
    metrics.configure(metrics.ConsoleMetricHandler(), "mine")
    metrics.put_metric("a.b", 12, "mine")
    assert re.fullmatch(r"\[\d+\.\d+\]\[mine\]: a\.b=12\n", capsys.readouterr().out)


def test_a_handler_has_to_emit(metrics: Module) -> None:
    with pytest.raises(TypeError):
        metrics.MetricHandler()


def test_a_call_is_measured(metrics: Module) -> None:
    kept = kept_by(metrics)

    @metrics.prof  # type: ignore[untyped-decorator]
    def add(left: int, right: int) -> int:
        """Adds."""
        return left + right

    assert add(1, right=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    names = [data.name for data in kept]
    key = "test_a_call_is_measured.<locals>.add"
    assert names == [f"{key}.success", f"{key}.duration.ms"]
    assert kept[0].value == 1
    assert isinstance(kept[1].value, int)
    assert kept[1].value >= 0


def test_a_failed_call_is_measured_and_fails(metrics: Module) -> None:
    kept = kept_by(metrics, "mine")

    @metrics.prof(group="mine")  # type: ignore[untyped-decorator]
    def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert [name.rpartition("fail.")[2] for name, _ in pairs(kept)] == ["failure", "duration.ms"]


def plain_function() -> None:
    pass


class Holder:
    def method(self) -> None:
        pass


def test_a_function_is_named_after_its_module_and_a_method_after_its_class(
    metrics: Module,
) -> None:
    kept = kept_by(metrics)
    metrics.prof(plain_function)()
    metrics.prof(Holder.method)(Holder())
    module = __name__.rpartition(".")[2]
    assert [name for name, _ in pairs(kept)[::2]] == [
        f"{module}.plain_function.success",
        "Holder.method.success",
    ]


def test_an_exit_is_neither_success_nor_failure(metrics: Module) -> None:
    kept = kept_by(metrics)

    @metrics.prof  # type: ignore[untyped-decorator]
    def leave() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        leave()
    assert [name.rpartition("leave.")[2] for name, _ in pairs(kept)] == ["duration.ms"]


def test_the_handler_is_looked_up_at_each_call(metrics: Module) -> None:
    measured = metrics.prof(plain_function)
    measured()
    kept = kept_by(metrics)
    measured()
    assert len(kept) == 2


def test_old_names_work_and_warn(metrics: Module) -> None:
    kept = kept_by(metrics, "mine")
    with pytest.warns(FutureWarning):
        metrics.publish_metric("mine", "a", 1)
    assert pairs(kept) == [("a", 1)]
    with pytest.warns(FutureWarning):
        metrics.profile("mine")(plain_function)()
    assert [name for name, _ in pairs(kept)[1:]] == [
        "plain_function.success",
        "plain_function.duration.ms",
    ]


def test_a_deprecation_is_said_once_and_not_at_every_call(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with pytest.warns(FutureWarning):
        measured = ours.profile("mine")(plain_function)
    measured()
    assert len(recwarn) == 0


def test_settings_are_kept_and_initializing_does_nothing(metrics: Module) -> None:
    assert metrics.MetricsConfig().params == {}
    assert metrics.MetricsConfig({"a": "b"}).params == {"a": "b"}
    assert metrics.initialize_metrics() is None
    assert metrics.initialize_metrics(metrics.MetricsConfig()) is None


def test_elapsed_time_is_in_whole_milliseconds(metrics: Module) -> None:
    assert metrics.get_elapsed_time_ms(time.time() - 2) in range(2000, 60_000)


def test_every_public_name_of_pytorchs_is_there(metrics: Module) -> None:
    assert set(metrics.api.__all__) <= set(ours.__all__)
    assert hasattr(metrics, "initialize_metrics")
