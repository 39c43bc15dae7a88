CHECKED: dict[str, str] = {}
