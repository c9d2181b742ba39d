"""The adapter keeps the contract on every real Engine."""

from tests.engine.contract_containers import *  # noqa: F403 - the contract's tests are collected here
from tests.engine.contract_files import *  # noqa: F403 - as above
from tests.engine.contract_processes import *  # noqa: F403 - as above
from tests.engine.contract_streams import *  # noqa: F403 - as above
