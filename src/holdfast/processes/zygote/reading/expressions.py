"""What an expression does, and what it gives.

Assumed to be harmless: reading an attribute or an item of an installed object, operators
between such objects, and going through them, even though that runs installed code. A step is
made of the one that matters: a name that a package loads only when it is taken. Using an
object of the program's own (calling it, reading an attribute, comparing it, going through it)
may run its code, and ends the reading. Assumed, too: what is passed over does not raise,
unless the program is prepared for that.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.processes.zygote.reading import constant_folding
from holdfast.processes.zygote.reading.calls import CallReader, GivenArguments
from holdfast.processes.zygote.reading.imports import Imports
from holdfast.processes.zygote.reading.steps import Certainty, Steps
from holdfast.processes.zygote.reading.values import (
    BUILT_IN,
    Known,
    Own,
    OwnClass,
    OwnModule,
    Plain,
    Scope,
    Thing,
    Unforeseeable,
    Value,
    either,
    is_built_in,
    is_foreign,
)

FUEL = 50_000
"""How many expressions and statements are read: what is short may still take long to read."""

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Expressions:
    """Works expressions out, as far as that goes. Raises `Unforeseeable` where it ends."""

    def __init__(self, steps: Steps, imports: Imports) -> None:
        self.steps = steps
        self.imports = imports
        self.may_raise = False
        """Whether something was read that may raise an exception in a worker."""
        self._calls = CallReader(steps, imports)
        self._fuel = FUEL

    def burn(self) -> None:
        self._fuel -= 1
        if self._fuel < 0:
            raise Unforeseeable("enough was read")

    @contextmanager
    def uncertain(self, really: bool = True) -> Iterator[None]:
        """While reading what may be run or not."""
        before = self.steps.certainty
        if really and before is Certainty.CERTAIN:
            self.steps.certainty = Certainty.UNCERTAIN
        try:
            yield
        finally:
            self.steps.certainty = before

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What an expression gives; steps are noted on the way."""
        self.burn()
        match node:
            case ast.Constant():
                return Known(node.value) if constant_folding.is_constant(node.value) else BUILT_IN
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                return self._attribute(self.value(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.Lambda():
                self.defaults(node.args, scope)
                return Own()
            case ast.NamedExpr():
                return self._walrus(node, scope)
            case ast.IfExp():
                return self._choice(node, scope)
            case ast.BoolOp():
                return self._several(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
        return self._composed(node, scope)

    def defaults(self, arguments: ast.arguments, scope: Scope) -> None:
        """The default values of a function, which are worked out when it is defined."""
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self.value(default, scope)

    def truth(self, node: ast.expr, scope: Scope) -> bool | None:
        """Whether a condition holds; None if that cannot be told."""
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                truth = self.truth(operand, scope)
                return None if truth is None else not truth
            case ast.BoolOp():
                return self._truth_of_several(node, scope)
        value = self._used(self.value(node, scope))
        return bool(value.value) if isinstance(value, Known) else None

    def _truth_of_several(self, node: ast.BoolOp, scope: Scope) -> bool | None:
        decides = isinstance(node.op, ast.Or)
        result: bool | None = not decides
        for operand in node.values:
            with self.uncertain(result is None):
                truth = self.truth(operand, scope)
            if truth is decides:
                return decides
            result = None if truth is None else result
        return result

    # Names, attributes, calls.

    def _name(self, name: str, scope: Scope) -> Value:
        value = scope.look_up(name)
        if value is None and hasattr(builtins, name):
            value = Thing(f"builtins.{name}")
        if value is None:
            raise Unforeseeable(f"{name} is not defined")
        return _constant(value)

    def _attribute(self, owner: Value, name: str) -> Value:
        match owner:
            case OwnModule():
                return _constant(self.imports.attribute(owner.name, name))
            case OwnClass():
                return owner.names.get(name, Own()) if owner.is_simple else Own()
            case Thing():
                self.imports.take_late(owner.name, name)
                self.may_raise = True
                return _constant(Thing(f"{owner.name}.{name}"))
            case Known():
                self.may_raise = True
                return constant_folding.attribute(owner.value, name)
            case Plain():
                self.may_raise = True
                return BUILT_IN if owner == BUILT_IN else Plain()
        raise Unforeseeable("an attribute of an object of the program")

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        owner: Value = Own()
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
        is_method = isinstance(owner, Known | Plain)
        if isinstance(node.func, ast.Attribute) and not is_method:
            function = self._attribute(owner, node.func.attr)
        else:
            function = Own() if is_method else self.value(node.func, scope)
        given = self._given(node, scope)
        self.may_raise = True
        if isinstance(node.func, ast.Attribute) and isinstance(owner, Known | Plain):
            return self._calls.method(owner, node.func.attr, given)
        if isinstance(function, Thing):
            return self._calls.function(function.name, given)
        raise Unforeseeable("the program calls something of its own")

    def _given(self, node: ast.Call, scope: Scope) -> GivenArguments:
        arguments = [self._item(each, scope) for each in node.args]
        keywords = {}
        for each in node.keywords:
            value = self.value(each.value, scope)
            keywords[each.arg or "**"] = value if each.arg else self._used(value)
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        return GivenArguments(arguments, keywords, starred or "**" in keywords)

    def _item(self, node: ast.expr, scope: Scope) -> Value:
        """An item of a list, or an argument; of `*many`, what they are made of."""
        if isinstance(node, ast.Starred):
            many = self._used(self.value(node.value, scope))
            return BUILT_IN if is_built_in(many) else Plain()
        return self.value(node, scope)

    def _used(self, value: Value) -> Value:
        """A value that an operator looks at: it must not be the program's."""
        if not is_foreign(value):
            raise Unforeseeable("an object of the program is used")
        return value

    # What is reached only under a condition.

    def _walrus(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        while scope.is_comprehension and scope.outer is not None:
            scope = scope.outer
        before = scope.names.get(node.target.id)
        # It may stand where it is not reached, so that the name keeps its value.
        scope.bind(node.target.id, either(value, BUILT_IN if before is None else before))
        return value

    def _choice(self, node: ast.IfExp, scope: Scope) -> Value:
        truth = self.truth(node.test, scope)
        if truth is not None:
            return self.value(node.body if truth else node.orelse, scope)
        with self.uncertain():
            return either(self.value(node.body, scope), self.value(node.orelse, scope))

    def _several(self, node: ast.BoolOp, scope: Scope) -> Value:
        """`a or b`: one of those that do not decide, or the first that does."""
        decides = isinstance(node.op, ast.Or)
        possible: list[Value] = []
        for operand in node.values:
            with self.uncertain(bool(possible)):
                value = self.value(operand, scope)
            is_last = operand is node.values[-1]
            if is_last or not isinstance(value, Known):
                possible.append(value if is_last else self._used(value))
            elif bool(value.value) is decides:
                possible.append(value)
                break
        result = possible[0]
        for other in possible[1:]:
            result = either(result, other)
        return result

    def _comprehension(self, node: Comprehension, scope: Scope) -> Value:
        """Names inside are its own; what it goes through is worked out outside, at first."""
        module = scope
        while module.outer is not None and not module.is_comprehension:
            module = module.outer  # The names of a class are not seen in there.
        inner = Scope(outer=module, is_comprehension=True)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        with self.uncertain():
            for generator in node.generators:
                where = scope if generator is node.generators[0] else inner
                many = self._used(self.value(generator.iter, where))
                self.bind_target(
                    generator.target, BUILT_IN if is_built_in(many) else Plain(), inner
                )
                for condition in generator.ifs:
                    self.truth(condition, inner)
            values = [self.value(part, inner) for part in parts]
        self.may_raise = True
        return _container(values)

    def bind_target(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a value to a name, or to several."""
        match target:
            case ast.Name():
                scope.bind(target.id, value)
            case ast.Starred():
                self.bind_target(target.value, either(value, BUILT_IN), scope)
            case ast.Tuple() | ast.List():
                parts = _parts(self._used(value), target.elts)
                for part, each in zip(target.elts, parts, strict=True):
                    self.bind_target(part, each, scope)
            case _:
                raise Unforeseeable("an item or an attribute is set")

    # What is made of other values.

    def _composed(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.Tuple() | ast.List():
                values = [self._item(each, scope) for each in node.elts]
                if any(isinstance(each, ast.Starred) for each in node.elts):
                    return _container(values)
                made = constant_folding.items(values, list if isinstance(node, ast.List) else tuple)
                return made if isinstance(made, Known) else _container(values)
            case ast.Set():
                return _container([self._item(each, scope) for each in node.elts])
            case ast.Dict():
                return self._dictionary(node, scope)
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                self.may_raise = True
                return self._operation(node, scope)
            case ast.Subscript():
                self.may_raise = True
                return self._subscript(node, scope)
            case ast.JoinedStr():
                return self._text(node, scope)
            case ast.Slice():
                bounds = [node.lower, node.upper, node.step]
                values = [self.value(each, scope) if each else Known(None) for each in bounds]
                known = [each.value for each in values if isinstance(each, Known)]
                return Known(slice(*known)) if len(known) == 3 else _container(values)
        raise Unforeseeable(type(node).__name__)

    def _dictionary(self, node: ast.Dict, scope: Scope) -> Value:
        pairs: dict[object, object] = {}
        values: list[Value] = []
        for name, item in zip(node.keys, node.values, strict=True):
            one = self.value(name, scope) if name else BUILT_IN
            other = self.value(item, scope)
            values += [one, other if name else self._used(other)]
            if isinstance(one, Known) and isinstance(other, Known) and isinstance(one.value, str):
                pairs[one.value] = other.value
        if len(pairs) == len(node.keys) and constant_folding.is_constant(tuple(pairs.values())):
            return Known(pairs)
        return _container(values)

    def _operation(self, node: ast.BinOp | ast.UnaryOp | ast.Compare, scope: Scope) -> Value:
        match node:
            case ast.UnaryOp():
                operand = self._used(self.value(node.operand, scope))
                if isinstance(operand, Known):
                    return constant_folding.unary(node.op, operand.value)
                return BUILT_IN if is_built_in(operand) else Plain()
            case ast.BinOp():
                left, right = self.value(node.left, scope), self.value(node.right, scope)
                if isinstance(node.op, ast.BitOr) and OwnClass in (type(left), type(right)):
                    left, right = (Plain() if isinstance(v, OwnClass) else v for v in (left, right))
                if isinstance(self._used(left), Known) and isinstance(self._used(right), Known):
                    return constant_folding.binary(node.op, left.value, right.value)  # type: ignore[union-attr]
                return BUILT_IN if is_built_in(left) and is_built_in(right) else Plain()
        return self._comparison(node, scope)

    def _comparison(self, node: ast.Compare, scope: Scope) -> Value:
        operands = [self.value(each, scope) for each in [node.left, *node.comparators]]
        if all(isinstance(kind, ast.Is | ast.IsNot) for kind in node.ops):
            operands = [each if isinstance(each, Known) else BUILT_IN for each in operands]
        for operand in operands:
            self._used(operand)
        if len(node.ops) > 1:
            return BUILT_IN
        kind, (left, right) = node.ops[0], operands
        if isinstance(left, Known) and isinstance(right, Known):
            return constant_folding.compare(kind, left.value, right.value)
        if isinstance(kind, ast.In | ast.NotIn) and isinstance(left, Known):
            found: Value = BUILT_IN
            if right == Thing("os.environ"):
                found = self.steps.has_variable(left.value)
            elif right == Thing("sys.path"):
                found = self.steps.has_folder(left.value)
            if isinstance(found, Known):
                return Known(found.value == isinstance(kind, ast.In))
        return BUILT_IN if is_built_in(left) and is_built_in(right) else Plain()

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        owner = self.value(node.value, scope)
        index = self.value(node.slice, scope)
        match owner:
            case Known() if isinstance(index, Known):
                return constant_folding.subscript(owner.value, index.value)
            case Thing("os.environ") if isinstance(index, Known):
                return self.steps.variable(index.value, BUILT_IN)
            case Thing("sys.modules"):
                return Own()
            case Thing("sys.argv"):
                return BUILT_IN
            case Thing():
                return Plain()
            case OwnClass() if "__class_getitem__" not in owner.names:
                return Plain()
        if not is_foreign(index):
            raise Unforeseeable("an object of the program is used")
        return BUILT_IN if is_built_in(self._used(owner)) else Plain()

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Value:
        """An f-string."""
        texts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self._used(self.value(part.value, scope))
                if part.format_spec is not None:
                    self.value(part.format_spec, scope)
                elif isinstance(value, Known):
                    as_text = repr if part.conversion == ord("r") else str
                    value = constant_folding.work_out(as_text, value.value)
                    if isinstance(value, Known):
                        texts.append(str(value.value))
            elif isinstance(part, ast.Constant):
                texts.append(str(part.value))
        if len(texts) < len(node.values):
            return BUILT_IN
        return constant_folding.work_out("".join, texts)


def _constant(value: Value) -> Value:
    if isinstance(value, Thing) and value.name in constant_folding.CONSTANTS:
        return Known(constant_folding.CONSTANTS[value.name])
    return value


def _container(values: list[Value]) -> Value:
    """A container whose items are not worked out."""
    if all(map(is_built_in, values)):
        return BUILT_IN
    return Plain() if all(map(is_foreign, values)) else Own()


def _parts(value: Value, targets: list[ast.expr]) -> list[Value]:
    """What each of several names gets."""
    items = value.value if isinstance(value, Known) else None
    starred = any(isinstance(target, ast.Starred) for target in targets)
    if isinstance(items, tuple | list) and len(items) == len(targets) and not starred:
        return [Known(item) for item in items]
    return [BUILT_IN if is_built_in(value) else Plain()] * len(targets)
