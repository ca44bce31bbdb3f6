"""This package as a wheel, in environments that users make: `make hosts`."""
