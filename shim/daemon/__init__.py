"""The process: builds all parts, recovers what an earlier server left, and is watched and measured."""
