"""What the file means: defaults that follow from other keys, and the file as the Policy that the rules read."""

from __future__ import annotations

import shlex
from decimal import Decimal

from millpond.rules.policy import FREE_FIRST_BYTE_MS, Backoff, Deadlines, LanePolicy, Policy, Spill
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule
from millpond.settings.shape import DEADLINES, LANE, Figures, File, Hold, Lane, LaneDeadlines, SpillAfter


def fill(file: File) -> File:
    """The file with every default put in that follows from other keys: so it can be shown and read as it counts."""
    hold = file.reconcile.hold_s
    if hold is None:
        # The third seed's file pins at once: it lists pin_on and knows no hold.
        pins = any(lane.pin_on is not None for lane in file.lanes.values())
        holds = any(lane.hold_s is not None for lane in file.lanes.values())
        hold = Hold(realtime=0, batch=0) if pins and not holds else Hold()
    reconcile = file.reconcile.model_copy(update={"hold_s": _by_class(hold)})
    filled = file.model_copy(update={"reconcile": reconcile})
    return filled.model_copy(
        update={"lanes": {name: _filled_lane(name, lane, filled) for name, lane in file.lanes.items()}}
    )


def policy(file: File) -> Policy:
    """The Policy that a filled file says: seconds become ms, prices become rules."""
    built = Policy(
        lanes={name: _lane_policy(name, lane, file) for name, lane in file.lanes.items()},
        routing={route: tuple(names) for route, names in file.routing.items()},
        backoff=Backoff(ms(file.backoff.first_s), ms(file.backoff.cap_s), file.backoff.jitter),
        saturated_default_ms=ms(file.saturated_default_s),
        saturated_cap_ms=ms(file.saturated_cap_s),
        max_attempts_per_job=file.max_attempts_per_job,
        max_unusable_per_job=file.max_unusable_per_job,
        max_leases_lost=file.max_leases_lost,
        lane_down_after=file.lane_down_after,
        lane_down_probe_ms=ms(file.lane_down_probe_s),
        fair_every=file.fair_every,
        late_completion_window_ms=ms(file.reconcile.late_completion_window_s),
        artifact_max_age_ms=None if file.artifact_max_age_s is None else ms(file.artifact_max_age_s),
        lease_ms=ms(file.lease_s),
        durable=file.durability == "full",
        idle_exit_ms=ms(file.idle_exit_s),
        grace_ms=ms(file.grace_s),
        spill=_spill(file),
        caps={name: cap.day_usd for name, cap in file.caps.items()},
        alerts={name: value for name, value in file.alerts if value is not None},
        tz=file.tz,
    )
    built.check()
    return built


def ms(seconds: float) -> int:
    """Seconds as whole milliseconds; what is above zero stays above zero."""
    return max(round(seconds * 1000), 1 if seconds > 0 else 0)


def _filled_lane(name: str, lane: Lane, file: File) -> Lane:
    is_free = _price(lane) == FREE
    tier = lane.tier or (name if name in ("free", "paid") else "free" if is_free else "paid")
    default_first_byte_s = (FREE_FIRST_BYTE_MS if is_free else DEADLINES.first_byte_ms) / 1000
    first_byte_s = lane.deadlines.first_byte_s or default_first_byte_s
    deadlines = {
        "first_byte_s": first_byte_s,
        "total_s": lane.deadlines.total_s or max(DEADLINES.total_ms / 1000, 2 * first_byte_s),
    }
    return lane.model_copy(
        update={
            "tier": tier,
            "deadlines": lane.deadlines.model_copy(update=deadlines),
            "hold_s": file.reconcile.hold_s if lane.hold_s is None else _by_class(lane.hold_s),
            "after_hold": lane.after_hold or file.reconcile.after_hold or ("same" if is_free else "pin"),
            "pin_on": sorted(LANE.pin_on) if lane.pin_on is None else lane.pin_on,
            "enabled": lane.enabled and (file.free_lane_enabled or tier != "free"),
        }
    )


def _lane_policy(name: str, lane: Lane, file: File) -> LanePolicy:
    hold = _by_class(lane.hold_s or Hold())
    models = lane.models or {}
    command = lane.command or []
    return LanePolicy(
        name=name,
        kind=lane.kind,
        tier=lane.tier or "paid",
        price=_price(lane),
        base_url=lane.base_url or "",
        model=lane.model,
        models=models if isinstance(models, dict) else {model: model for model in models},
        key_env=lane.key_env or "",
        command=tuple(shlex.split(command) if isinstance(command, str) else command),
        target=lane.target or "",
        max_attempts=lane.max_attempts,
        max_in_flight=lane.max_in_flight,
        serial=lane.serial,
        soft_timeout_ms=None if lane.soft_timeout_s is None else ms(lane.soft_timeout_s),
        deadlines=_deadlines(lane.deadlines),
        after_hold=lane.after_hold or "pin",
        hold_ms={"realtime": ms(hold.realtime), "batch": ms(hold.batch)},
        pin_on=LANE.pin_on if lane.pin_on is None else frozenset(lane.pin_on),
        recall=lane.recall,
        settling_ms=ms(lane.settling_s),
        can_detach=lane.can_detach,
        idempotency=lane.idempotency,
        retry_500=lane.retry_500,
        effects=lane.effects,
        streams=lane.streams,
        supports_schema=lane.supports_schema,
        supports_tools=lane.supports_tools,
        supports_images=lane.supports_images,
        context_tokens=lane.context_tokens,
        max_output_tokens=lane.max_output_tokens,
        headers=lane.headers,
        params=lane.params,
        dedup_header=file.reconcile.dedup_key,
        proxy=lane.proxy,
        ca_file=lane.ca_file,
        rpm=lane.rpm,
        tpm=lane.tpm,
        daily_requests=lane.daily_requests,
        daily_tokens=lane.daily_tokens,
        reset_tz=lane.reset_tz,
        enabled=lane.enabled,
    )


def _price(lane: Lane) -> PriceRule:
    match lane.price:
        case None:
            return UNKNOWN_PRICE
        case "auto":
            return PriceRule("auto")
        case Decimal():
            return PriceRule("stated", call_usd=lane.price) if lane.price else FREE
        case Figures(input_usd_per_mtok=one, output_usd_per_mtok=other, call_usd=call):
            if not any((one, other, call)):
                return FREE
            return PriceRule("stated", input_usd_per_mtok=one, output_usd_per_mtok=other, call_usd=call)


def _by_class(hold: float | Hold) -> Hold:
    return hold if isinstance(hold, Hold) else Hold(realtime=hold, batch=hold)


def _deadlines(said: LaneDeadlines) -> Deadlines:
    first_byte_s = said.first_byte_s or DEADLINES.first_byte_ms / 1000
    total_s = said.total_s or DEADLINES.total_ms / 1000
    return Deadlines(ms(said.connect_s), ms(first_byte_s), ms(said.idle_s), ms(total_s))


def _spill(file: File) -> Spill | None:
    return ms(file.spill.after_s) if isinstance(file.spill, SpillAfter) else file.spill
