"""Cases from seeds and files: `drive`, `large`, `scenario` (a faults file), `cuts`, `report`, `shrink`."""
