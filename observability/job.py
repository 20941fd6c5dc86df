"""The dashboard of one job."""

from __future__ import annotations

from panels import Column, Query, Row, choice, commands, lines, listing, number, page, phases

UID = "dljob-job"
_OF = 'namespace="$namespace",dljob="$dljob"'
_STATES = ("ready", "changing", "waiting", "succeeded", "failed")


def job() -> str:
    """The dashboard's JSON."""
    return page(
        UID,
        "DLJob / Job",
        "One DLJob: where it is, how fast it goes, what failed and how long that took.",
        (
            choice("namespace", "Namespace", "label_values(dljob_status_phase, namespace)"),
            choice("dljob", "DLJob", 'label_values(dljob_status_phase{namespace="$namespace"}, dljob)'),
        ),
        (_now(), _progress(), _time(), _ranks(), _failures(), _ask()),
    )


def _now() -> Row:
    ready = f'sum(dljob_workers{{{_OF},state=~"ready|succeeded"}}) / sum(dljob_workers{{{_OF}}})'
    restarts, seconds = f"sum(dljob_restarts_total{{{_OF}}})", f"max(dljob_running_seconds{{{_OF}}})"
    return Row(
        "Now",
        (
            number("Phase", Query(f"dljob_phase{{{_OF}}} == 1", "{{phase}}"), "PrimeMaster's word.", name=True),
            number("Step", Query(f"max(dljob_step{{{_OF}}})"), "Of the first driver role.", unit="none"),
            number("Ranks ready", Query(ready), "Ready or done, of all.", unit="percentunit"),
            number("Restarts", Query(restarts), "In all attempts, at all levels below the RayCluster.", unit="none"),
            number("Running for", Query(seconds), "Since the start of this attempt.", unit="dtdurations"),
            number("Ray", Query(f"dljob_info{{{_OF}}}", "{{ray_version}}"), "Ray's version on the head.", name=True),
        ),
    )


def _progress() -> Row:
    step = Query(f"max(dljob_step{{{_OF}}})", "step")
    pace = Query(f"clamp_min(60 * max(deriv(dljob_step{{{_OF}}}[5m])), 0)", "steps per minute")
    lag = Query(f"max by (role) (dljob_served_lag_seconds{{{_OF}}})", "{{role}}")
    learned = "Age of the earliest event that new weights have learned from, when the first rank had loaded them."
    none = "no server learns from a source"
    when = Query(f"max by (phase) (dljob_phase{{{_OF}}}) == 1", "{{phase}}")
    return Row(
        "Progress",
        (
            lines("Step", (step,), "A fall is a return to an earlier step.", unit="none", whole_numbers=True),
            lines("Steps per minute", (pace,), "Over the last five minutes.", unit="suffix: /min"),
            phases("Phase", when, "When the job was in which phase."),
            lines("From event to served weight", (lag,), learned, unit="s", width=24, empty=none),
        ),
    )


def _time() -> Row:
    """What the ledger says."""
    spent = f"dljob_role_seconds_total{{{_OF}"
    useful, all_time = f'{spent},account="productive"}}', f'{spent},account!="spare"}}'
    share = f"sum(rate({useful}[10m])) / sum(rate({all_time}[10m])) >= 0"  # no number while nothing is counted
    roles = f"sum by (role) (rate({useful}[10m])) / sum by (role) (rate({all_time}[10m])) >= 0"
    accounts = Query(f"sum by (account) (rate({spent}}}[$__rate_interval]))", "{{account}}")
    help_text = "Productive time as a share of the time of all ranks, over ten minutes."
    return Row(
        "Goodput",
        (
            lines(
                "Goodput", (Query(share, "job"), Query(roles, "{{role}}")), help_text, unit="percentunit", beside=True
            ),
            lines("Ranks by account", (accounts,), "What they spend their time on.", unit="none", stacked=True),
        ),
    )


def _ranks() -> Row:
    states = Query(f"sum by (state) (dljob_workers{{{_OF}}})", "{{state}}")
    roles = Query(f'sum by (role) (dljob_workers{{{_OF},state="ready"}})', "{{role}}")
    units = Query(f"sum by (state) (dljob_units{{{_OF}}})", "{{state}}")
    table = listing(
        "Roles",
        tuple(Query(f'sum by (role) (dljob_workers{{{_OF},state="{state}"}})') for state in _STATES),
        (
            Column("role", "Role"),
            *(Column(f"Value #{chr(ord('A') + n)}", state.capitalize(), "none") for n, state in enumerate(_STATES)),
        ),
        "Ranks of each role, by state.",
        width=12,
    )
    return Row(
        "Ranks and units",
        (
            lines(
                "Ranks by state",
                (states,),
                "Changing: starting or stopping.",
                unit="none",
                whole_numbers=True,
                stacked=True,
            ),
            lines(
                "Ranks ready, by role", (roles,), "Which role is missing.", unit="none", whole_numbers=True, beside=True
            ),
            lines(
                "Units by state",
                (units,),
                "Gangs that Ray holds, and the others.",
                unit="none",
                whole_numbers=True,
                stacked=True,
            ),
            table,
        ),
    )


def _failures() -> Row:
    levels = "One process, a group of a role, a role, the whole job, or PrimeMaster itself."
    healed = "From detection to all ranks ready again."
    restarts = Query(f"round(sum by (level) (increase(dljob_restarts_total{{{_OF}}}[$__rate_interval])))", "{{level}}")
    recovery = Query(f"max by (level) (dljob_last_recovery_seconds{{{_OF}}})", "{{level}}")
    master_starts = Query(f"max(dljob_master_epoch{{{_OF}}})", "starts")
    return Row(
        "Failures",
        (
            lines(
                "Restarts by level", (restarts,), levels, unit="none", width=8, height=10, whole_numbers=True, bars=True
            ),
            lines(
                "Last recovery, by level", (recovery,), healed, unit="s", width=8, height=10, empty="no recovery yet"
            ),
            lines(
                "Starts of PrimeMaster",
                (master_starts,),
                "It comes back by itself, as one more.",
                unit="none",
                width=8,
                height=10,
                whole_numbers=True,
            ),
        ),
    )


def _ask() -> Row:
    of = "$dljob -n $namespace"
    return Row(
        "Why, and what now",
        (
            commands(
                "Ask the command",
                (
                    (f"dljob why {of}", "names the first cause, its evidence, what followed, and what to do next"),
                    (
                        f"dljob open {of}",
                        "opens the job's page: who was doing what when, each incident with its log lines",
                    ),
                    (f"dljob ledger {of}", "says where the time went, role by role, and what each failure cost"),
                ),
                "These know single ranks, which no metric names.",
            ),
        ),
    )
