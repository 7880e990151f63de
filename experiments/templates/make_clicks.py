"""Write clicks.csv: 20,000 clicks, of which every fifth item has more."""

import random

random.seed(0)
with open("clicks.csv", "w") as file:
    for _ in range(20_000):
        user, item = random.randrange(200), random.randrange(50)
        chance = 0.6 if item % 5 == 0 else 0.1
        print(int(random.random() < chance), user, item, sep=",", file=file)
