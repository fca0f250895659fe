"""A measurement of a model whose times are known, as `batchline measure` would have written it."""

from __future__ import annotations

from batchline.measured import BatchTime, Measured, Plan, RequestTime, SettingRun
from batchline.runfile import Machine

SIZES = (1, 8, 32)


def known_run(c_ms: float, m_ms: float, name: str = "known", front_end_ms: float = 2.0, workers: int = 3, cores: int = 2) -> Measured:
    """T(B) = c + B·m up to 32, noise of 1%, workers that do not disturb each other: they sleep."""
    settings = tuple((count, 1) for count in range(1, workers + 1))
    plan = Plan(
        batch_sizes=SIZES,
        samples=1,
        rounds=4,
        warm_up_s=1,
        slot_s=0.5,
        least_batches=2,
        settings=settings,
        setting_batch_size=8,
        setting_s=1,
        setting_visits=2,
    )
    made = Measured(
        name, "1.0", "0" * 64, plan, machine=Machine("a CPU", cores, "Linux", 0.1), versions={}, complete=True, worker_mib=300.0
    )
    for number in range(plan.rounds):
        for size in SIZES:
            times = [(c_ms + m_ms * size) * noise for noise in (0.99, 1.0, 1.01)]
            made.batches += [BatchTime(place, size, number, ms, warm_up=False) for place in ("server", "handler") for ms in times]
        made.requests.append(RequestTime(number, c_ms + m_ms + front_end_ms, warm_up=False))
    made.settings += [SettingRun(n, 1, 8, visit, n * 8e3 / (c_ms + 8 * m_ms), 400) for n, _ in settings for visit in (0, 1)]
    return made
