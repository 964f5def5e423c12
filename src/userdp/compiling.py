"""Machine code when it is needed: planning and help load no compiler.

`Kernel` is a function that numba compiles when it is first called, or first needed by compiled code that calls it.
`later` is a module of such code that is loaded when something in it is used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

# Options of what compiled code alone calls. Wrappers by which Python or C would call it take longer to compile than it
# does itself: there are none, so Python must not call it. It is put into its callers always: a function that is called
# may be in memory several times, from several libraries that optimised it differently, and the first serves all; which
# that is depends on what this process compiled and what it loaded from numba's cache, and so would last digits.
INNER: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Kernel:
    """A function with numba's options for it. Compiled code calls it as any function that numba compiled."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.targetoptions = function, options

    @functools.cached_property
    def compiled(self) -> Any:
        """What numba makes of it."""
        import numba

        for name in self.py_func.__code__.co_names:
            module = self.py_func.__globals__.get(name)
            if isinstance(module, ModuleType):  # numba looks into what is loaded
                module.__doc__  # noqa: B018
        return numba.njit(**self.targetoptions)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """What numba asks of a name that it does not know."""
        return self.compiled._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)

    @property
    def named(self) -> bool:
        """Whether it is found by its name in its module."""
        return getattr(sys.modules.get(self.__module__), self.py_func.__qualname__, None) is self

    def __reduce__(self) -> Any:
        """Pickled by name, which is the same in each process: a key of numba's cache. A function within a function is
        pickled as numba does it.
        """
        if self.named:
            return _found, (self.__module__, self.py_func.__qualname__)
        return _unpickled, (type(self), self.compiled, self.targetoptions)


class PlainKernel(Kernel):
    """One that runs as it is written when Python calls it: for functions of a few numbers."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, options | INNER)

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


def _found(module: str, name: str) -> Kernel:
    kernel: Kernel = getattr(importlib.import_module(module), name)
    return kernel


def _unpickled(kind: type[Kernel], compiled: Any, options: dict[str, Any]) -> Kernel:
    kernel = kind(compiled.py_func, options)
    kernel.compiled = compiled
    return kernel


def kernel(kind: type[Kernel] = Kernel, **options: Any) -> Callable[[_F], _F]:
    """A decorator that makes a function such a kernel, without Python's lock and with what numba kept of it."""
    options = {"cache": True, "nogil": True} | options
    return lambda function: kind(function, options)  # type: ignore[return-value]  # with the same arguments


@contextlib.contextmanager
def noticed(begins: Callable[[], None]) -> Iterator[None]:
    """Calls `begins` whenever a kernel is compiled; not if it is loaded from what numba kept on disk."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]  # numba has no types
        def on_start(self, _: Any) -> None:
            begins()

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


def later(name: str) -> ModuleType:
    """The module, loaded when an attribute of it is first asked for."""
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.loader is not None
    found.loader = importlib.util.LazyLoader(found.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
