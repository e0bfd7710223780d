"""Review by people: tasks with sentinels, the page, exchange with other tools, agreement and decisions."""
