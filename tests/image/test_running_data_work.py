"""The full image's Python can do data work, on a read-only root."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Look


def test_the_users_python_does_data_work(look: Look) -> None:
    program = (
        "import numpy as np, pandas as pd\n"
        "from sklearn.linear_model import LinearRegression\n"
        "frame = pd.DataFrame({'x': np.arange(10.0)}).assign(y=lambda f: 2 * f.x + 1)\n"
        "fit = LinearRegression().fit(frame[['x']], frame.y)\n"
        "print('ml-ok', round(float(fit.coef_[0])))\n"
    )
    assert look(f'python3 -c "{program}"') == "ml-ok 2"


def test_the_users_python_draws_a_figure(look: Look) -> None:
    program = (
        "import matplotlib; matplotlib.use('agg')\n"
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 4, 9]); plt.savefig('figure.png')\n"
    )
    look(f'python3 -c "{program}"')
    assert look("head -c 4 figure.png | tail -c 3; rm figure.png") == "PNG"
