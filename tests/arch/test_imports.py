"""Imports point one way: cli -> assemble -> subsystems -> contracts, and torch stays below paceline.runtime."""

import sys

from tests.arch.source import Module, imports, modules

BASE = {"contracts", "errors"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "phases": set(),
    "contracts": {"errors"},
    "config": BASE,
    "hub": BASE,  # finds, fetches and describes models
    "text": BASE | {"hub"},
    "engine": BASE,
    "cost": BASE,
    "planner": BASE | {"config", "cost"},  # later the simulator
    "router": BASE,  # pure; prices come through the port
    "sim": BASE | {"engine", "cost", "router", "lab"},  # lab: its workloads
    "runtime": BASE,
    "server": BASE | {"text", "config", ""},  # the engine is behind contracts.ports.EngineClient; "": the version
    "lab": BASE | {""},  # speaks HTTP only; "": the version, for the fingerprint
    "llm": BASE | {"assemble", "text", "config", "cost"},  # cost: the ledger it shows
    "cli": BASE | {"assemble", "hub", "llm", "config", "lab", ""},  # "": the version
    "": BASE | {"llm"},  # paceline/__init__.py offers LLM, lazily
}
EVERYTHING = {"assemble"}  # the one file that picks concrete classes
ALSO = {  # narrower than a whole package
    "paceline.runtime.loader": {"hub"},
    "paceline.cli.bench_step": {"engine"},  # times the engine without a model
    "paceline.cli.calibrate": {"cost"},  # prints a calibration
    "paceline.cli.plan": {"planner", "cost"},  # prints a plan
}

# Inside runtime: executor -> model_runner -> models -> layers -> kernels.
MAY_NOT_IMPORT: dict[str, tuple[str, ...]] = {
    "paceline.runtime.kernels": (
        "layers",
        "models",
        "quant",
        "loader",
        "model_runner",
        "worker",
        "executor",
        "sampler",
    ),
    "paceline.runtime.layers": ("models", "loader", "model_runner", "worker", "executor", "sampler"),
    "paceline.runtime.models": ("kernels", "loader", "model_runner", "worker", "executor", "sampler"),
    "paceline.runtime.loader": ("model_runner", "worker", "executor", "sampler"),
    "paceline.runtime.model_runner": ("worker", "executor"),
    "paceline.runtime.worker": ("executor",),
}

# Inside the lab: what a part may use of the others.
LAB: dict[str, set[str]] = {
    "mock": set(),
    "workload": set(),
    "stats": set(),
    "load": {"workload"},
    "metrics": {"stats"},
    "artefact": {"metrics", "stats"},
    "quality": {"load", "workload", "stats", "artefact"},
    "gates": {"metrics", "stats", "artefact", "load", "workload", "quality"},
    "experiment": {"mock", "workload", "stats", "load", "metrics", "artefact", "quality", "gates"},
    "report": {"artefact", "metrics", "stats"},
}
LAB_VALUES = {"report": ("load.progress", "experiment.results", "experiment.bench")}  # plain types a page is made of

OUTSIDE: dict[str, set[str]] = {  # third-party packages a unit may use, where that is a law
    "errors": set(),
    "contracts": {"numpy", "msgspec"},
    "config": {"msgspec"},
    "cost": {"numpy", "msgspec", "scipy"},
    "planner": {"numpy", "msgspec"},
    "engine": {"numpy", "msgspec", "zmq", "xxhash"},
    "router": {"msgspec"},
    "sim": {"numpy", "msgspec"},
}

# Deciders are pure: no clock, no randomness, no I/O. Time and numbers are passed in.
IMPURE = {
    "torch",
    "time",
    "random",
    "os",
    "io",
    "socket",
    "threading",
    "asyncio",
    "subprocess",
    "pathlib",
    "zmq",
    "secrets",
}
DECIDERS = (
    "paceline.contracts",
    "paceline.cost",
    "paceline.router",
    *(
        f"paceline.planner.{name}"
        for name in ("capacity", "cards", "devices", "layout", "ledger", "plan", "question", "search", "serve_file")
    ),
    *(f"paceline.planner.{name}" for name in ("speculation", "split", "steady", "step", "traffic", "walk")),
    "paceline.planner.lint",
    "paceline.config.tree",
    "paceline.config.options",
    "paceline.config.roofline",
    "paceline.config.profiles",
    "paceline.config.features",
    *(
        f"paceline.engine.{name}"
        for name in (
            "settings",
            "request_state",
            "queue",
            "policies",
            "shares",
            "stop",
            "admission",
            "decisions",
            "scheduler",
            "block_pool",
            "prefix_cache",
            "kv_manager",
            "horizon",
        )
    ),
)


def below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def own_units(module: Module):
    for found in imports(module):
        if below(found.target, "paceline"):
            yield [*found.target.split("."), ""][1], found


def test_packages_import_only_what_the_table_allows():
    bad = []
    for module in modules().values():
        assert module.unit in MAY_IMPORT or module.unit in EVERYTHING, f"{module.unit} has no row in MAY_IMPORT"
        if module.unit in EVERYTHING:
            continue
        allowed = MAY_IMPORT[module.unit] | {module.unit}
        for prefix, more in ALSO.items():
            if below(module.name, prefix):
                allowed = allowed | more
        bad += [
            f"{module.relative}:{i.line} imports {i.target}" for unit, i in own_units(module) if unit not in allowed
        ]
    assert not bad


def test_torch_is_imported_below_runtime_only():
    bad = []
    for module in modules().values():
        if module.unit != "runtime":
            bad += [f"{module.relative}:{i.line}" for i in imports(module) if below(i.target, "torch")]
    assert not bad


def test_layers_of_the_runtime_point_down():
    bad = []
    for module in modules().values():
        for prefix, names in MAY_NOT_IMPORT.items():
            forbidden = [f"paceline.runtime.{name}" for name in names]
            if below(module.name, prefix):
                bad += [
                    f"{module.relative}:{i.line} imports {i.target}"
                    for i in imports(module)
                    if any(below(i.target, name) for name in forbidden)
                ]
    assert not bad


def test_parts_of_the_lab_point_down():
    bad = []
    for module in modules().values():
        if not below(module.name, "paceline.lab") or module.name == "paceline.lab":
            continue
        part = module.name.split(".")[2]
        for found in imports(module):
            if not below(found.target, "paceline.lab") or found.target == "paceline.lab":
                continue
            other = found.target.split(".")[2]
            value = any(below(found.target, f"paceline.lab.{name}") for name in LAB_VALUES.get(part, ()))
            if not (other == part or other in LAB[part] or value):
                bad.append(f"{module.relative}:{found.line} imports {found.target}")
    assert not bad


def test_deciding_packages_use_few_libraries():
    bad = []
    for module in modules().values():
        if module.unit not in OUTSIDE:
            continue
        for found in imports(module):
            top = found.target.split(".")[0]
            if not (top == "paceline" or top in sys.stdlib_module_names or top in OUTSIDE[module.unit]):
                bad.append(f"{module.relative}:{found.line} imports {top}")
    assert not bad


def test_deciders_import_nothing_impure():
    bad = []
    for module in modules().values():
        if any(below(module.name, prefix) for prefix in DECIDERS):
            bad += [
                f"{module.relative}:{i.line} imports {i.target}"
                for i in imports(module)
                if i.target.split(".")[0] in IMPURE
            ]
    assert not bad


def test_deciders_listed_here_exist():
    known = modules()
    missing = [name for name in DECIDERS if name not in known]
    assert not missing


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {
        name: sorted({i.target for i in imports(module) if i.target in modules() and not i.lazy and i.target != name})
        for name, module in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "circle: " + " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for target in graph[name]:
            visit(target, (*path, name))
        done.add(name)

    for name in graph:
        visit(name, ())
