"""The decorator of system tests. Owns nothing else."""

NAMES = set()


def test(seconds_max=600, soak=False, rings=False):
    """Makes a test of a function that takes a Context `t`; its docstring is the summary.

    `seconds_max` is a bound against hangs: many times the usual duration, for slow and busy machines.
    """
    # Not above: benchmarks use other parts of the harness without pytest.
    import pytest

    def register(function):
        # The name is also that of its directory and its log.
        if function.__name__ in NAMES:
            raise RuntimeError(f"two tests are called {function.__name__}")
        NAMES.add(function.__name__)
        function.__test__ = True
        pytest.mark.timeout(seconds_max)(function)
        for mark, is_set in [(pytest.mark.soak, soak), (pytest.mark.rings, rings)]:
            if is_set:
                mark(function)
        return function

    return register
