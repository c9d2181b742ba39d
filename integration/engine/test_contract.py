"""The adapter keeps the contract on every real Engine."""

from tests.engine.contract import *  # noqa: F403 - the contract's tests are collected here
