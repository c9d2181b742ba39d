"""Where on disk images and the writable layers of containers are."""
