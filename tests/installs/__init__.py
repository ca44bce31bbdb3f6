"""mlx_patches as a wheel, in environments like those of users: `make hosts`."""
