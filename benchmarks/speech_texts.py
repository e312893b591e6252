"""What the clips of the live benchmarks say: sentences, phrases and words of everyday vocabulary.

Nearly every word is among the 270 most frequent of its language, which nano knows best (docs/nano.md); the
sentences themselves are not in its training data. A bar marks where a phrase of another language can stand.
"""

from __future__ import annotations

SENTENCES = {
    "en": [
        "What do you want | to do today?",
        "My mother is always at home | in the morning.",
        "We have to find | a new house this year.",
        "I think that the little girl | is right.",
        "He never told me | about his father.",
        "They were here with us | last night.",
        "You should talk to your best friend | again.",
        "The people in this world | need more time.",
        "There is nothing wrong | with the car.",
        "Could you help me | with some money?",
        "I will never leave | this place.",
        "Her boy is looking | for another job.",
        "We know how | to make things better.",
        "Everything is fine | if you stay with me.",
        "Maybe he was only trying | to help.",
        "Tell him to come back | before the night.",
    ],
    "de": [
        "Ich weiß nicht, | wo er heute ist.",
        "Meine Mutter ist heute | zu Hause.",
        "Wir müssen jetzt | nach Hause gehen.",
        "Das ist einfach | nicht richtig.",
        "Er hat mir alles | über seine Frau gesagt.",
        "Kannst du mir bitte | heute Abend helfen?",
        "Sie will vielleicht | mit uns reden.",
        "Die zwei Mädchen | waren schon wieder hier.",
        "Warum hast du | so viel Angst vor ihm?",
        "Morgen haben wir | keine Zeit dafür.",
        "Der Mann ohne Geld | hat nichts zu essen.",
        "Ich möchte dich | nie wieder sehen.",
        "Vielleicht kommt dein Freund | heute zurück.",
        "Das Leben ist schön, | wenn du da bist.",
        "Wir sind gerade | ganz weit weg von euch.",
        "Bitte sag ihnen, | dass ich hier warte.",
    ],
    "es": [
        "No sé qué | quieres hacer hoy.",
        "Mi padre está | en la casa de tu amigo.",
        "Tenemos que hablar | sobre el trabajo.",
        "Ella nunca dijo nada | a su madre.",
        "Creo que hay | un problema con el dinero.",
        "Todos los días | es lo mismo.",
        "Ahora no tengo | tiempo para eso.",
        "La chica quiere ver | a sus amigos.",
        "Vamos a casa | antes de la noche.",
        "Usted puede estar | aquí hasta mañana.",
        "¿Dónde está | el hijo de ese hombre?",
        "Me gusta mucho | este lugar.",
        "Siempre hay gente | en la casa.",
        "Ellos son | una gran familia.",
        "Su mujer sabe | toda la verdad.",
        "Hace tres años | que no te veo.",
    ],
    "fr": [
        "Je ne sais pas | où il est maintenant.",
        "Tu dois parler | avec ta mère ce soir.",
        "Nous avons trouvé | une petite maison.",
        "Mon père est | un homme bien.",
        "Elle veut toujours | partir avec moi.",
        "Vous avez raison, | monsieur.",
        "Il faut faire | vite maintenant.",
        "Ils sont très bien | dans leur maison.",
        "Pourquoi tu veux | toujours savoir ?",
        "La fille de mon ami | est ici.",
        "Cette femme a | beaucoup de travail.",
        "On peut se voir | demain soir.",
        "Je suis désolé | pour votre père.",
        "Tout le monde | a peur de la nuit.",
        "Je crois que | vous avez une idée.",
        "Personne ne regarde | la petite fille.",
    ],
    "zh": [
        "我不知道|他现在在哪里。",
        "你为什么|不告诉我们？",
        "今天我想|跟朋友一起吃。",
        "他们已经|离开这里了。",
        "妈妈说她|明白你的意思。",
        "这个工作|真的很不错。",
        "我们应该|一起去看看。",
        "请给我|一点时间。",
        "爸爸今天|还没有回来。",
        "你可以|帮我做这些事情吗？",
        "因为没有时间|所以我不能来。",
        "这里的人|都很喜欢你。",
        "我觉得|他说的是真的。",
        "大家都|在等你开始。",
        "最好的地方|是这里。",
        "那个孩子|叫什么名字？",
    ],
}
PHRASES = {
    "en": ["thank you very much", "for the last time", "the best day ever", "all of my friends"],
    "de": ["heute Abend vielleicht", "noch nicht ganz genau", "meine liebe Mutter", "sehr guter Freund"],
    "es": ["hasta mañana por la noche", "por favor señor", "toda mi familia", "con mucho gusto amigo"],
    "fr": ["merci beaucoup monsieur", "tout le monde", "à demain soir", "encore une fois"],
    "zh": ["非常对不起", "谢谢你先生", "今天早上", "真的没问题"],
}
WORDS = {
    "en": ["money", "everything", "morning", "another", "family"],
    "de": ["vielleicht", "Mädchen", "natürlich", "zusammen", "Ordnung"],
    "es": ["familia", "trabajo", "dinero", "problema", "momento"],
    "fr": ["monsieur", "maintenant", "beaucoup", "voiture", "bonjour"],
    "zh": ["朋友", "时间", "事情", "孩子", "谢谢"],
}
NEWS = {
    "en": [
        "My sister bought a small house near the station last year.",
        "The children were playing in the street until it got dark.",
        "Nobody knows why the meeting was moved to Thursday.",
        "He opened the window because the room was too warm.",
        "They sold more bread this week than in the whole of May.",
        "Please bring the books back before the end of the month.",
    ],
    "de": [
        "Meine Schwester hat letztes Jahr ein kleines Haus gekauft.",
        "Die Kinder spielten auf der Straße, bis es dunkel wurde.",
        "Niemand weiß, warum das Treffen verschoben wurde.",
        "Er öffnete das Fenster, weil es im Zimmer zu warm war.",
        "Sie haben diese Woche mehr Brot verkauft als im ganzen Mai.",
        "Bitte bringen Sie die Bücher bis zum Ende des Monats zurück.",
    ],
    "es": [
        "Mi hermana compró una casa pequeña cerca de la estación.",
        "Los niños jugaban en la calle hasta que se hizo de noche.",
        "Nadie sabe por qué cambiaron la reunión al jueves.",
        "Abrió la ventana porque en la sala hacía mucho calor.",
        "Esta semana vendieron más pan que en todo el mes de mayo.",
        "Por favor, devuelva los libros antes del fin de mes.",
    ],
    "fr": [
        "Ma sœur a acheté une petite maison près de la gare.",
        "Les enfants jouaient dans la rue jusqu'à la nuit.",
        "Personne ne sait pourquoi la réunion a été déplacée.",
        "Il a ouvert la fenêtre parce qu'il faisait trop chaud.",
        "Ils ont vendu plus de pain cette semaine que tout le mois de mai.",
        "Merci de rapporter les livres avant la fin du mois.",
    ],
    "zh": [
        "我的姐姐去年在车站旁边买了一个小房子。",
        "孩子们在外面玩到天黑才回家。",
        "没有人知道会议为什么改到星期四。",
        "因为房间里太热,他打开了窗户。",
        "这个星期他们卖得比上个月还多。",
        "请在月底以前把书还回来。",
    ],
}
"""Beyond nano's vocabulary: for recordings whose language is followed and whose words are not counted."""


def whole(sentence: str) -> str:
    """A sentence without its mark."""
    return sentence.replace("| ", "").replace("|", "")


def halves(sentence: str) -> tuple[str, str]:
    """What stands before and after the mark."""
    before, _, after = sentence.partition("|")
    return before.strip(), after.strip()
