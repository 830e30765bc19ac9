from typing import Any, Tuple, Union

from fuel_prefetch.transformers import ReadAhead

class PrefetchMonitoring:
    RECORDS: Tuple[str, ...]
    stream: ReadAhead
    prefix: str
    main_loop: Any
    def __init__(self, stream: ReadAhead, prefix: str = 'prefetch',
                 **kwargs: Any) -> None: ...
    def do(self, which_callback: str, *args: Any) -> None: ...
