"""Tests of the packages that users install, built here and installed as users do."""
