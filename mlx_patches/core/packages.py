"""The packages that we patch or check, and their distributions."""

# Import package to distribution. Start-up waits for the first import of one of these packages.
DISTRIBUTIONS = {"mlx_lm": "mlx-lm", "mlx_vlm": "mlx-vlm", "vllm_mlx": "vllm-mlx"}
MODELS = ("mlx_lm", "mlx_vlm")
# Packages with model code, to their distributions.
MODEL_PACKAGES = {f"{package}.models": DISTRIBUTIONS[package] for package in MODELS}
# The packages of hosts that contain their own model code, which the evidence does not cover.
HOST_MODELS = ("vllm_mlx.models", "omlx.models")
# The distributions that run models. Every audit lists them, besides hosts.
CORE = ("mlx", *MODEL_PACKAGES.values())
# Distributions whose releases are not measured: patches change how other code uses them.
UNMEASURED = frozenset(
    {
        *("transformers", "jinja2", "starlette", "fastapi", "referencing"),
        *("mlx-embeddings", "mlx-openai-server", "rapid-mlx"),
    }
)
# Servers that are recognised by their command, to the distribution that installs it.
SERVERS = {"mlx_lm.server": "mlx-lm", "mlx_vlm.server": "mlx-vlm"}
# Servers whose first process imports none of these packages, and the package that runs them.
FRONTS = {"mlx-openai-server": "app"}
# The commands of servers that load a model and serve requests.
COMMANDS = (*SERVERS, "mlx_lm", "vllm-mlx", "rapid-mlx", "mlx-openai-server", "omlx")
_DISTRIBUTION_OF = DISTRIBUTIONS | {package: name for name, package in FRONTS.items()}


def distribution_of(package: str) -> str:
    return _DISTRIBUTION_OF.get(package, package.replace("_", "-"))


def package_of(distribution: str) -> str:
    return {name: package for package, name in DISTRIBUTIONS.items()}[distribution]
