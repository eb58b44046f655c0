"""Import arrows go one way, and each outside library has one home. See DESIGN: the tree."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dpray"

# A folder or file may import those further down, never those further up.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"tuning"},
    {"api"},
    {"distributed"},
    {"tracking", "reporting"},
    {"search"},
    {"execute"},
    {"runs", "methods", "evaluation"},
    {"inversion"},
    {"adversarial", "clustering", "upstream", "vae_training"},
    {"features", "averages", "matching", "plain_classifier", "stacks", "transport"},
    {"bending", "embeddings", "gaussian_shares", "moments", "released_sets"},
    {"contract", "spec"},
    {"privacy", "models", "checkpoints"},
    {"data", "pool"},
    {"checks", "world", "memory", "progress", "storage", "torchvision_shim"},
    {"errors"},
]
HOMES = {"ray": {"distributed"}, "mlflow": {"tracking"}, "argparse": {"cli"}}


def level(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_is_below_it(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top in HOMES:
            assert own in HOMES[top], f"{path} imports {top}"
        part = rest.split(".")[0]
        if top == "dpray" and part and part != own and any(part in names for names in LAYERS):
            assert level(part) > level(own), f"{own} imports {part}"


def test_methods_do_not_import_each_other():
    for path in (PACKAGE / "methods").glob("*.py"):
        others = {n for n in imports(path) if n.startswith("dpray.methods.")}
        assert not {n for n in others if n != "dpray.methods.register"}, f"{path}: {others}"


def test_no_file_is_longer_than_one_idea():
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 400, f"{path} is over 400 lines"
