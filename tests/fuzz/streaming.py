from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = ()
