"""Cases from seeds and files: `drive`, `large`, `scenario` (a faults file), `report`, `shrink`."""
