"""Embeds an image's patches whose position table is a cubic polynomial of the place."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, module_of, mx, require_own

SIDE, HEIGHT, WIDTH = 8, 4, 6
# By distance, the weights of cubic convolution with A = -0.75.
A = -0.75


def probe(target: Target) -> Result:
    """Red if a patch's position differs from cubic convolution, computed on paper."""
    require_own(target)  # a supporting target is needed if the embeddings are repaired
    module = module_of(target)
    config = SimpleNamespace(hidden_size=2, image_size=SIDE, patch_size=1)
    embeddings = module.Glm4vVisionEmbeddings(config)
    table = [float(y**3 - 5 * x**2 + x * y) for y in range(SIDE) for x in range(SIDE)]
    embeddings.position_embedding.weight = mx.array([[one, -one] for one in table])
    rows = [y for y in range(HEIGHT) for _ in range(WIDTH)]
    columns = [*range(WIDTH)] * HEIGHT
    shapes = mx.array([[1, HEIGHT, WIDTH]])
    given = mx.zeros((HEIGHT * WIDTH, 2)), [HEIGHT * WIDTH], shapes, mx.array(rows)
    actual = embeddings(*given, mx.array(columns))[:, 0].tolist()
    expected = [sample(table, y, x) for y, x in zip(rows, columns, strict=True)]
    scale = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(actual, expected, strict=True)) / scale
    return Result(not worst < 1e-5, f"off by {worst:.2g} of the positions' scale", worst)


def sample(table: list[float], y: int, x: int) -> float:
    """The table's value at a patch's place."""
    return sum(
        high * wide * table[row * SIDE + column]
        for row, high in weigh(y, HEIGHT)
        for column, wide in weigh(x, WIDTH)
    )


def weigh(place: int, count: int) -> list[tuple[int, float]]:
    """The four places of the table around a patch's, and the weight of each."""
    at = (place + 0.5) * SIDE / count - 0.5
    first = int(at // 1)
    taps = range(first - 1, first + 3)
    return [(min(max(tap, 0), SIDE - 1), convolve(abs(at - tap))) for tap in taps]


def convolve(distance: float) -> float:
    """Cubic convolution (Keys, 1981)."""
    if distance <= 1:
        return (A + 2) * distance**3 - (A + 3) * distance**2 + 1
    return A * distance**3 - 5 * A * distance**2 + 8 * A * distance - 4 * A
