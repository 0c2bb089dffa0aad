"""Ten words with two senses and four sentences per sense, plus twenty other sentences, all written for these tests."""

SENSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bank": (
        (
            "He cashed a check at the bank.",
            "The bank refused to lend them money for the harness.",
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

OTHERS = (
    "My grandmother's recipe asks for three eggs, two lemons and more patience than I have.",
    "Why would anybody paint a submarine yellow?",
    "The committee postponed its decision until the accounts had been checked again.",
    "Above the clouds the pilot finally saw the sunrise.",
    "Nobody noticed that the clock in the hall had stopped.",
    "The violinist tuned her instrument while the audience was still finding its seats.",
    "If you water the tomatoes in the evening, they will not burn.",
    "He reads the newspaper from the last page to the first.",
    "Two children were arguing about who had seen the comet first.",
    "The bridge was closed because one of its cables had rusted through.",
    "She learned Portuguese by listening to football on the radio.",
    "A thin layer of ice covered the windscreen, and the scraper was in the other car.",
    "The museum returned the stolen painting to the family of its owner.",
    "Please leave your wet boots outside the door.",
    "Our neighbour keeps bees on the roof of his garage.",
    "The doctor advised him to sleep more and to worry less.",
    "After the concert we walked home through the empty streets.",
    "This map is so old that half of the islands on it do not exist.",
    "The apprentice burned the first loaf and was proud of the second.",
    "Every letter in the box was addressed to a ship that had sunk.",
)
SENTENCES = (*(text for senses in SENSES.values() for group in senses for text in group), *OTHERS)
"""All 100 sentences."""
