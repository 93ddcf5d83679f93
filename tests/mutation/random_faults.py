"""Small faults of the usual kinds at every place of a Python source: an edge, a sign, a factor, a swapped argument.

A fault is a number: the n-th that the walk over the syntax tree meets. The same source gives the same faults.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Path = tuple[tuple[str, int | None], ...]

_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil", "sum": "max"}
# Arguments that say how Python works, not what kvcalc computes.
_KEYWORDS = frozenset({"strict", "frozen", "slots", "kw_only", "exist_ok", "encoding", "sort_keys", "separators"})
_SYMMETRIC = frozenset({"min", "max", "isinstance", "isclose"})
_MESSAGES = frozenset({"Option", "Argument", "cast", "TypeVar", "getLogger", "lru_cache", "dataclass", "field"})


@dataclass(frozen=True, slots=True)
class RandomFault:
    """One change of one source.

    Args:
        kind: what sort of change it is.
        line: the line of the source, from 1.
        owner: the function or class it stands in, dotted; empty for the module itself.
        before: the changed expression.
        after: what it became.
        path: the way to it through the syntax tree, and ``node`` what to put there.
    """

    kind: str
    line: int
    owner: str
    before: str
    after: str
    path: Path
    node: ast.AST

    def applied(self, source: str) -> ast.Module:
        """The syntax tree of the source with this fault in it."""
        tree = ast.parse(source)
        _put(tree, self.path, self.node)
        return ast.fix_missing_locations(tree)

    def __str__(self) -> str:
        """One line for a list."""
        return f"{self.line}: {self.owner or '(module)'}: {self.kind}: {self.before}  ->  {self.after}"


def faults_of(source: str) -> list[RandomFault]:
    """All faults of a source, in the order of the walk."""
    tree = ast.parse(source)
    return list(_faults(tree))


def _faults(tree: ast.Module) -> Iterator[RandomFault]:
    for path, owner, node in _places(tree, (), ""):
        for kind, after in _changes(node, tree, path):
            if ast.dump(after) == ast.dump(node):
                continue  # two equal arguments
            texts = (ast.unparse(each).splitlines()[0] for each in (node, after))
            yield RandomFault(kind, node.lineno, owner, *texts, path, ast.copy_location(after, node))


def _places(node: ast.AST, path: Path, owner: str) -> Iterator[tuple[Path, str, ast.AST]]:
    """Every expression and statement whose value reaches a result, with the way to it and its owner."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}" if owner else node.name
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params", "ctx", "ops", "op"}:
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _skipped(child):
                continue
            way = (*path, (name, index if isinstance(value, list) else None))
            if isinstance(child, (ast.expr, ast.stmt)):
                yield way, owner, child
            yield from _places(child, way, owner)


def _skipped(node: ast.AST) -> bool:
    """Whether nothing in a node reaches a result: texts, messages, imports, types."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Raise():
            return True
        case ast.Expr(value=ast.Constant()) | ast.keyword(arg="help"):
            return True
        case ast.keyword(arg=str(name)):
            return name in _KEYWORDS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.BinOp(op=ast.BitOr(), right=ast.Constant(value=None)):
            return True  # a type
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in _MESSAGES
    return False


def _changes(node: ast.AST, tree: ast.Module, path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Everything that may be changed at one place, each with its kind."""
    change = _CHANGES.get(type(node))
    if change is not None:
        yield from change(node)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _other_field(node, node.value.id, _function_of(tree, path))


def _compared(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for index, operator in enumerate(node.ops):
        ops = [*node.ops]
        ops[index] = _COMPARISONS[type(operator)]()
        yield "edge", _with(node, ops=ops)


def _calculated(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        return
    if type(node.op) in _OPERATORS:
        yield "operator", _with(node, op=_OPERATORS[type(node.op)]())
    if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.BitOr)):
        yield "term dropped", node.left
    if isinstance(node.op, (ast.Add, ast.Mult, ast.BitOr)):
        yield "term dropped", node.right


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "flag", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1)
    elif isinstance(value, float) and value:
        yield "factor", ast.Constant(value * 2)
        yield "factor", ast.Constant(value * 1.1)


def _called(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    match node.func:
        case ast.Name(id=name) if name in _FUNCTIONS:
            yield "function", _with(node, func=ast.Name(_FUNCTIONS[name], ast.Load()))
        case ast.Attribute(attr=name) if name in _FUNCTIONS:
            yield "function", _with(node, func=_with(node.func, attr=_FUNCTIONS[name]))
    symmetric = isinstance(node.func, (ast.Name, ast.Attribute)) and ast.unparse(node.func).split(".")[-1] in _SYMMETRIC
    for index in range(0 if symmetric else len(node.args) - 1):
        if not any(isinstance(each, (ast.Starred, ast.JoinedStr)) for each in node.args[index : index + 2]):
            args = [*node.args]
            args[index], args[index + 1] = args[index + 1], args[index]
            yield "arguments swapped", _with(node, args=args)
    named = [index for index, each in enumerate(node.keywords) if each.arg and not _skipped(each)]
    for one, other in pairwise(named):
        keywords = [*node.keywords]
        keywords[one] = ast.keyword(keywords[one].arg, node.keywords[other].value)
        keywords[other] = ast.keyword(keywords[other].arg, node.keywords[one].value)
        yield "arguments swapped", _with(node, keywords=keywords)


def _joined(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for index in range(len(node.values)):
        rest = [value for at, value in enumerate(node.values) if at != index]
        yield "condition dropped", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _signed(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.op, (ast.USub, ast.Not)):
        yield "sign dropped", node.operand


def _decided(node: ast.If | ast.IfExp) -> Iterator[tuple[str, ast.AST]]:
    yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _stepped(_node: ast.AugAssign) -> Iterator[tuple[str, ast.AST]]:
    yield "step dropped", ast.Pass()


_CHANGES: dict[type[ast.AST], Callable[[Any], Iterator[tuple[str, ast.AST]]]] = {
    ast.Compare: _compared,
    ast.BinOp: _calculated,
    ast.BoolOp: _joined,
    ast.UnaryOp: _signed,
    ast.Constant: _constants,
    ast.Call: _called,
    ast.If: _decided,
    ast.IfExp: _decided,
    ast.AugAssign: _stepped,
}


def _other_field(node: ast.Attribute, base: str, function: ast.AST | None) -> Iterator[tuple[str, ast.AST]]:
    """The next field, by name, that the same function reads of the same object."""
    if function is None:
        return
    called = {id(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)}
    fields = sorted(
        {
            each.attr
            for each in ast.walk(function)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == base
            and id(each) not in called
        }
    )  # fmt: skip
    if node.attr in fields and len(fields) > 1:
        yield "other field", _with(node, attr=fields[(fields.index(node.attr) + 1) % len(fields)])


def _function_of(tree: ast.AST, path: Path) -> ast.AST | None:
    """The outermost function on the way to a node."""
    node = tree
    for name, index in path:
        if isinstance(node, ast.FunctionDef):
            return node
        value = getattr(node, name)
        node = value if index is None else value[index]
    return None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """The node with other fields."""
    return type(node)(**{name: value for name, value in ast.iter_fields(node)} | fields)  # noqa: C416


def _put(tree: ast.AST, path: Path, node: ast.AST) -> None:
    """Put a node at the end of a way."""
    for name, index in path[:-1]:
        value = getattr(tree, name)
        tree = value if index is None else value[index]
    name, index = path[-1]
    if index is None:
        setattr(tree, name, node)
    else:
        getattr(tree, name)[index] = node
