"""The former name of `roofline.worker`, for files of users that import from it."""
