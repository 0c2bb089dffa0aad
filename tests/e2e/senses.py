"""Ten words in two senses each, four sentences a sense; and a hundred sentences made of parts. All written for this."""

import random

SENSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bank": (
        (
            "He cashed a check at the bank.",
            "The bank refused to lend them money for the house.",
            "She opened a savings account with a small bank in the city.",
            "Interest rates rose, and the bank sent a letter to every customer.",
        ),
        (
            "They sat on the bank of the river.",
            "Willows grow along the bank where the stream turns.",
            "We pulled the canoe up the muddy bank before dark.",
            "An otter slid down the bank and into the water.",
        ),
    ),
    "bat": (
        (
            "A bat flew out of the cave at dusk.",
            "The bat hangs upside down from the roof of the barn and sleeps.",
            "With its large ears the bat hears the moths it hunts at night.",
            "We found a tiny bat with folded wings behind the shutter.",
        ),
        (
            "He swung the bat and missed the ball.",
            "Her new bat is made of ash, and she has not lost a match with it.",
            "The pitcher watched the boy lift his bat over his shoulder.",
            "Rain stopped the game, so she wiped her bat and went home.",
        ),
    ),
    "spring": (
        (
            "In spring the cherry trees bloom all over town.",
            "Last spring was so cold that the seeds came up late.",
            "The swallows come back every spring from the south.",
            "After a long winter, spring arrived in a single week.",
        ),
        (
            "The spring inside the lock has broken and the door will not shut.",
            "Press the lever until the spring is fully compressed.",
            "A steel spring pushes the pen back into its case.",
            "The mattress squeaks because one spring has come loose.",
        ),
    ),
    "crane": (
        (
            "A crane stood on one leg in the shallow marsh.",
            "The crane spread its grey wings and danced for its mate.",
            "Every autumn a lone crane rests in our rice field on its flight south.",
            "The chick followed the crane through the reeds, looking for frogs.",
        ),
        (
            "A crane lifted the steel beams to the tenth floor.",
            "The operator climbed into the cab of the crane at six.",
            "They hired a crane to unload the containers from the ship.",
            "The building site is silent, and its yellow crane has not moved all week.",
        ),
    ),
    "mouse": (
        (
            "A mouse ran across the kitchen floor and hid behind the stove.",
            "The cat brought us a dead mouse this morning.",
            "There is a mouse in the barn that eats the grain.",
            "The owl heard the mouse under the snow and dived.",
        ),
        (
            "Click the left button of the mouse to open the file.",
            "My mouse stopped working, so I used the keyboard.",
            "She plugged a wireless mouse into her laptop.",
            "Move the pointer with the mouse and drag the window to the other screen.",
        ),
    ),
    "match": (
        (
            "She struck a match and lit the candle.",
            "The last match was damp and would not burn.",
            "He dropped a burning match into the dry straw.",
            "With one match and some birch bark he started the campfire.",
        ),
        (
            "Our team lost the match by two goals.",
            "The match was cancelled because the pitch was flooded.",
            "Forty thousand people watched the final match of the season.",
            "The referee ended the match after a long stoppage.",
        ),
    ),
    "bark": (
        (
            "The bark of the old oak is deep and rough.",
            "Beavers had stripped the bark from the young trees.",
            "Cork is the bark of a tree that grows in Portugal.",
            "Moss covers the bark on the north side of the trunk.",
        ),
        (
            "The dog gave a loud bark when the postman rang.",
            "I was woken at night by the bark of a stray dog.",
            "Her puppy's bark is still thin and squeaky.",
            "With one short bark the sheepdog turned the whole flock.",
        ),
    ),
    "seal": (
        (
            "A seal lay on the rocks and dried its fur in the sun.",
            "The young seal swam beneath the ice, chasing fish.",
            "We saw the head of a seal between the waves near the harbour.",
            "A hungry seal follows the trawlers for herring.",
        ),
        (
            "The letter was closed with a seal of red wax.",
            "The king pressed his seal into the treaty.",
            "An official seal on the envelope showed that nobody had opened it.",
            "Without the notary's stamp and seal the contract is not valid.",
        ),
    ),
    "plant": (
        (
            "The plant on the windowsill needs water and more light.",
            "This plant flowers once in seven years and then withers.",
            "She moved the plant into a bigger pot with fresh soil.",
            "The leaves of the plant are poisonous to goats.",
        ),
        (
            "The plant employs four hundred people and builds engines.",
            "Workers at the chemical plant went on strike for higher wages.",
            "The company will close its plant near the border next year.",
            "A new power plant supplies the whole region with electricity.",
        ),
    ),
    "train": (
        (
            "The train left the station on time.",
            "We missed the last train and slept at the platform.",
            "A freight train rolled slowly over the bridge.",
            "The conductor closed the doors, and the train began to move.",
        ),
        (
            "The coaches train the swimmers twice a day.",
            "They train guide dogs for people who cannot see.",
            "You have to train for months before you run a marathon.",
            "Hospitals train young nurses on the ward.",
        ),
    ),
}

PEOPLE = ("teacher", "farmer", "nurse", "painter", "judge", "baker", "sailor", "student", "plumber", "widow")
PLACES = ("kitchen", "harbour", "library", "garden", "market", "theatre", "office", "forest", "museum", "village")
THINGS = ("letter", "basket", "violin", "ladder", "coat", "map", "bottle", "camera", "hammer", "lamp")
QUALITIES = ("old", "broken", "heavy", "expensive", "small", "green", "famous", "dirty", "empty", "strange")
DEEDS = ("carried", "found", "sold", "repaired", "hid", "forgot", "bought", "painted", "dropped", "washed")
WEATHER = ("rain", "snow", "fog", "wind", "frost", "thunder", "heat", "hail", "sunshine", "mist")
TIMES = ("yesterday", "at noon", "last summer", "on Sunday", "before dinner", "in March", "at night", "this morning")
SUBJECTS = ("physics", "cooking", "chess", "politics", "football", "poetry", "money", "gardening", "history", "opera")

TEMPLATES = (
    "The {person} {deed} the {quality} {thing} in the {place} {time}.",
    "Because of the {weather}, nobody went to the {place} with the {person}.",
    "My {quality} {thing} belongs to the {person} who lives behind the {place}.",
    "Did the {person} really {deed_now} a {thing} {time}?",
    "A {person} and a {other} talked about {subject} until the {weather} stopped.",
    "She {deed} her {thing} {time}, but the {person} never noticed.",
    "There was a {quality} {thing} on the table, next to a book about {subject}.",
    "If the {weather} lasts, we will meet the {person} at the {place} instead.",
    "The {place} was {quality}, cold and full of people who love {subject}.",
    "{time_first}, the {person} gave every child a {thing} and a lesson in {subject}.",
)
NOW = {
    "carried": "carry", "found": "find", "sold": "sell", "repaired": "repair", "hid": "hide", "forgot": "forget",
    "bought": "buy", "painted": "paint", "dropped": "drop", "washed": "wash",
}  # fmt: skip


def made_sentences(count: int) -> list[str]:
    """Different ones, the same every time."""
    chance = random.Random(17)
    found: dict[str, None] = {}
    while len(found) < count:
        person, other = chance.sample(PEOPLE, 2)
        deed, time = chance.choice(DEEDS), chance.choice(TIMES)
        sentence = TEMPLATES[len(found) % len(TEMPLATES)].format(
            person=person,
            other=other,
            place=chance.choice(PLACES),
            thing=chance.choice(THINGS),
            quality=chance.choice(QUALITIES),
            deed=deed,
            deed_now=NOW[deed],
            weather=chance.choice(WEATHER),
            time=time,
            time_first=time[0].upper() + time[1:],
            subject=chance.choice(SUBJECTS),
        )
        found[sentence] = None
    return list(found)
