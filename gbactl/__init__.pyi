from gbactl import errors as errors
from gbactl.api import Comparison as Comparison
from gbactl.api import Run as Run
from gbactl.api import compare as compare
from gbactl.api import load as load
from gbactl.api import train as train

__version__: str
