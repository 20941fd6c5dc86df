"""Pieces of dashboards: each function is one way to show a query, in the one style of all of dljob's dashboards."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as look
from grafana_foundation_sdk.builders import dashboard as make
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import text as words
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import text as text_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, ORANGE, RED, BLUE, GREY, PURPLE, YELLOW, PINK = (
    "#56a64b", "#ff9830", "#e02f44", "#3274d9", "#8e8e8e", "#8f3bb8", "#f2cc0c", "#e394bf",
)  # fmt: skip
COLOURS = {
    GREEN: ("Running", "ready", "success", "Process"),
    ORANGE: ("Recovering", "changing", "requeue_after", "RoleGroup"),
    RED: ("Failed", "failed", "error", "Job"),
    BLUE: ("Succeeded", "succeeded", "InProcess"),
    GREY: ("Invalid", "Pending", "Queued", "waiting", "pending"),
    PURPLE: ("Provisioning", "Stopping", "Master"),
    YELLOW: ("Scheduling", "Role"),
    PINK: ("Stopped", "Suspended", "Node"),
}
"""A state has one colour wherever it is shown."""
ACCOUNTS = {
    "productive": "#12906a", "init": "#56b4e9", "rendezvous": "#f0e442", "recompute": "#0b5fa5", "detect": "#d55e00",
    "decide": "#cc79a7", "replace": "#e69f00", "stalled": "#b3261e", "stale": "#9c6b4e", "wait": "#cfe3f5",
    "queue": "#b9bdc4", "schedule": "#8d939d", "idle": "#5d6470", "spare": "#6b4c9a",
}  # fmt: skip
"""Those of a job's page (dljob report)."""
_STATEFUL = ("{{phase}}", "{{state}}", "{{level}}", "{{result}}")


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and what its series are called; `{{label}}` is replaced."""

    expr: str
    legend: str = ""


def _target(query: Query, ref: int, *, instant: bool, as_table: bool = False) -> prometheus.Dataquery:
    dataquery = (
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .ref_id(chr(ord("A") + ref))
        .datasource(DATASOURCE)
        .format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES)
    )
    return dataquery.instant() if instant else dataquery.range()


def _thresholds(steps: tuple[tuple[float, str], ...]) -> make.ThresholdsConfig:
    """`steps` are (from, colour); below the first it is green."""
    first = dashboard.Threshold(value=None, color=GREEN)
    return (
        make.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([first, *(dashboard.Threshold(value=at, color=colour) for at, colour in steps)])
    )


def number(
    title: str,
    query: Query,
    help_text: str,
    *,
    unit: str = "short",
    width: int = 4,
    steps: tuple[tuple[float, str], ...] = (),
    name: bool = False,
) -> stat.Panel:
    """The last value in large; with `name` the series' name instead, for a phase or a version."""
    text = common.BigValueTextMode.NAME if name else common.BigValueTextMode.VALUE
    panel = (
        stat.Panel()
        .title(title)
        .description(help_text)
        .datasource(DATASOURCE)
        .span(width)
        .height(3)
        .unit(unit)
        .text_mode(text)
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(look.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(steps))
        .with_target(_target(query, 0, instant=True))
    )
    _colour(panel, (query,))
    return panel


def lines(
    title: str,
    queries: tuple[Query, ...],
    help_text: str,
    *,
    unit: str = "short",
    width: int = 12,
    height: int = 8,
    whole_numbers: bool = False,
    stacked: bool = False,
    bars: bool = False,
    beside: bool = False,
    limit: float | None = None,
    empty: str = "",
) -> timeseries.Panel:
    """Values over time.

    `whole_numbers` is for counts: no 1.5 of them on an axis. `limit` draws a dashed red line, `empty` shows where
    there are no values. A legend of many lines is `beside` them, as it is with those that are stacked.
    """
    right = (stacked or beside) and not bars
    panel = (
        timeseries.Panel()
        .title(title)
        .description(help_text)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .unit(unit)
        .min(0)
        .line_width(1 if stacked else 2)
        .fill_opacity(100 if bars else 60 if stacked else 8)
        .draw_style(common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            look.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST if bars else common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.RIGHT if right else common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs([] if bars else ["lastNotNull", "max"])
        )
        .tooltip(look.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        .targets([_target(query, ref, instant=False) for ref, query in enumerate(queries)])
    )
    if unit == "percentunit":
        panel.max(1)
    if whole_numbers:
        panel.decimals(0)
    if empty:
        panel.no_value(empty)
    if stacked or bars:
        panel.stacking(look.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if limit is not None:
        panel.thresholds(_thresholds(((limit, RED),)))
        panel.thresholds_style(look.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED))
    _colour(panel, queries)
    return panel


def phases(title: str, query: Query, help_text: str, *, width: int = 24) -> statetimeline.Panel:
    """A row for each series, in the colour of its state where it is 1."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(help_text)
        .datasource(DATASOURCE)
        .span(width)
        .height(5)
        .mappings([dashboard.ValueMap(options={"1": dashboard.ValueMappingResult(text="yes")})])
        .merge_values(merge_values=True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .fill_opacity(80)
        .legend(look.VizLegendOptions().show_legend(show_legend=False).display_mode(common.LegendDisplayMode.HIDDEN))
        .with_target(_target(query, 0, instant=False))
    )
    _colour(panel, (query,))
    return panel


def commands(title: str, lines_: tuple[tuple[str, str], ...], help_text: str, *, height: int = 4) -> words.Panel:
    """What to type next, each with what it shows; Grafana replaces the variables of the dashboard in it."""
    content = "  \n".join(f"`{command}` {shows}" for command, shows in lines_)
    return (
        words.Panel()
        .title(title)
        .description(help_text)
        .span(24)
        .height(height)
        .mode(text_model.TextMode.MARKDOWN)
        .content(content)
    )


def share(part: float, metric: str, labels: str, by: str, window: str) -> str:
    """The value that `part` of a histogram's observations stay below, for each value of the labels in `by`.

    Without observations in the window it is no number, which the comparison leaves out.
    """
    return f"histogram_quantile({part}, sum by ({by}, le) (rate({metric}_bucket{{{labels}}}[{window}]))) >= 0"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the label or the `Value #A` that it shows, its title and unit."""

    field: str
    title: str
    unit: str = ""
    link: str = ""
    """URL of a data link; `${__data.fields.x}` is replaced."""


def listing(
    title: str,
    queries: tuple[Query, ...],
    columns: tuple[Column, ...],
    help_text: str,
    *,
    width: int = 24,
    height: int = 8,
    empty: str = "nothing",
) -> table.Panel:
    """Instant queries, joined on the labels that they share; columns that are not named are not shown."""
    names = {column.field: column.title for column in columns}
    organize = dashboard.DataTransformerConfig(
        id_val="organize",
        options={
            "indexByName": {column.field: place for place, column in enumerate(columns)},
            "renameByName": names,
            "includeByName": dict.fromkeys(names, True),
        },
    )
    panel = (
        table.Panel()
        .title(title)
        .description(help_text)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .no_value(empty)
        .filterable(filterable=True)
        .sort_by([look.TableSortByFieldState().display_name(columns[0].title)])
        .targets([_target(query, ref, instant=True, as_table=True) for ref, query in enumerate(queries)])
        .transformations([dashboard.DataTransformerConfig(id_val="merge", options={}), organize])
    )
    for column in columns:
        settings = [dashboard.DynamicConfigValue(id_val="unit", value=column.unit)] if column.unit else []
        if column.link:
            link = {"title": f"Open {column.title.lower()}", "url": column.link}
            settings.append(dashboard.DynamicConfigValue(id_val="links", value=[link]))
        if settings:
            panel.override_by_name(column.title, settings)
    return panel


def _colour(panel: stat.Panel | timeseries.Panel | statetimeline.Panel, queries: tuple[Query, ...]) -> None:
    """Series that are called after a state or an account get its colour."""
    for account, colour in ACCOUNTS.items() if queries[0].legend == "{{account}}" else ():
        fixed = dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        panel.override_by_regexp(f"/^({account})$/", [fixed])
    if any(query.legend in _STATEFUL for query in queries):
        for colour, states in COLOURS.items():
            fixed = dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
            panel.override_by_regexp(f"/^({'|'.join(states)})$/", [fixed])


def choice(name: str, label: str, query: str, *, many: bool = False) -> make.QueryVariable:
    """A variable filled from Prometheus; with `many` several values or all may be chosen."""
    variable = (
        make.QueryVariable(name)
        .label(label)
        .query({"query": query, "refId": f"Variable-{name}"})
        .datasource(DATASOURCE)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if many:
        everything = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
        variable = variable.multi(multi=True).include_all(include_all=True).all_value(".*").current(everything)
    return variable


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Builder[dashboard.Panel], ...]


def page(
    uid: str, title: str, description: str, variables: tuple[make.QueryVariable, ...], rows: tuple[Row, ...]
) -> str:
    """A dashboard as JSON. Panels are numbered in their order; the builder lays them out on the grid of 24 columns."""
    dashboard_builder = (
        make.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["dljob"])
        .editable()
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .variables([make.DatasourceVariable("datasource").label("Prometheus").type("prometheus"), *variables])
    )
    for row in rows:
        dashboard_builder = dashboard_builder.with_row(make.Row(row.title))
        for panel in row.panels:
            dashboard_builder = dashboard_builder.with_panel(panel)
    built = dashboard_builder.build()
    for number_, panel in enumerate(built.panels or [], start=1):
        panel.id_val = number_
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"
