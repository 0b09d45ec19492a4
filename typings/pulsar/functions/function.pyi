from abc import abstractmethod
from typing import Any

from .context import Context

class Function:
    @abstractmethod
    def process(self, input: Any, context: Context) -> Any: ...
