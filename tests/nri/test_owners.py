from shim.nri.owners import Field
from tests.api.test_nri_wire import EXPECTED


def test_fields_have_the_numbers_of_the_protocol() -> None:
    known = dict(EXPECTED["nri.pkg.api.v1alpha1"].enums["Field"])
    assert {field.name: int(field) for field in Field} == {name: number for name, number in known.items() if number}
