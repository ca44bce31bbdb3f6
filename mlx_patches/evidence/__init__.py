"""The lab's measurements, as the package ships them."""
