"""Decides what each column of a table holds (number, date, category, text, …), from all rows.

The table is in DuckDB, and each decision is a query over many columns in long form (row, column, cell):

1. `_Batch._count` finds columns whose cells are all plain numbers; steps 2 and 3 skip them.
2. `_Batch._collect_values` stores the distinct values of the other columns in `vals` and separates spellings
   of missing values.
3. `_dates`, then `_numbers`, then `_other` decide. Dates come first, because 20240131 is also a number.
4. `_resolved` decides ambiguous decimal marks as in the other columns, `_with_numbers` adds statistics, and
   `_find_identifiers` finds row indexes and identifiers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainers.data.own.images import TRAIN_WORDS, VALIDATION_WORDS, side_of
from trainers.data.own.problems import quoted
from trainers.data.own.table_file import AROUND_CELLS, Row, Table, column, literal

NUMBER, CATEGORY, TEXT, DATE, FILE_NAME = "number", "category", "text", "date", "file name"
IDENTIFIER, INDEX, CONSTANT = "identifier", "row index", "constant"
COORDINATES = "coordinates"
EMPTY, MIXED, IGNORED, SPLIT = "empty", "mixed", "ignored", "split"
LEARNED = (NUMBER, MIXED, CATEGORY, TEXT, DATE, COORDINATES)
LEFT_OUT = (IDENTIFIER, INDEX, CONSTANT, EMPTY, IGNORED, FILE_NAME, SPLIT)
DECIMAL_COMMA, DECIMAL_POINT = "number, decimal comma", "number, decimal point"
ORDERS = {"date, day first": "%d", "date, month first": "%m"}

# Spellings of a missing value: in any column, and in columns of numbers or dates only.
MISSING = (
    "na", "n/a", "#n/a", "nan", "null", "none", "?", "nat", "<na>", "\\n", "-", "--", "—", "–", "(null)",
    "#null!",
)  # fmt: skip
MISSING_NUMBER = (
    *MISSING, ".", "..", "...", "unknown", "unk", "missing", "undefined", "nil", "n.a.", "n. a.", "k.a.",
    "k. a.", "not available", "not applicable", "no data", "nodata", "empty", "(empty)", "<null>",
    "#div/0!", "#value!", "#ref!", "#name?", "#num!", "*", "x", "tbd", "**", "n/d", "s/d", "n.d.",
    "#nv", "#n/v", "#n/d", "#wert!", "#bezug!", "#zahl!", "#valeur!", "#nom?", "#nombre!", "无", "未知",
    "不明", "keine angabe", "n.v.", "o.a.", "fehlt", "unbekannt", "leer", "nd", "nc", "s.o.", "inconnu",
    "non renseigné", "sin datos", "desconocido", "0000-00-00", "0000-00-00 00:00:00", "00/00/0000",
    "00.00.0000", "1.#qnan", "1.#ind", "-1.#ind", "-nan(ind)", "-nan", "#n/a n/a", "not recorded", "(blank)",
    "(none)", "[null]", "n/s", "n/r", "brak", "brak danych", "н/д", "нет данных", "なし", "없음",
    "present", "current", "ongoing", "now", "to date", "heute", "aktuell", "actuel", "9999-12-31",
    "31.12.9999", "12/31/9999", "31/12/9999",
)  # fmt: skip
MAX_COUNTED = 20_000
MAX_EXAMINED = 1000  # only this many characters of a cell are examined
MIXED_FROM = 0.8  # from this share of numbers on, the other cells are probably mistakes
MIN_FOR_IDENTIFIER = 10
MOST_PER_ID = 20  # rows per value; a column with more is a number or category, not an identifier
MOST_JOINED = 5  # rows per value of an index that tables joined below each other have repeated
MIN_TEXT_WORDS = 4.0
MIN_IDEOGRAPHS = 5.0
MAX_ONE_HOT = 32
# A model computes in float32, whose largest value is 3.4e38 and whose resolution is relative to the value.
LARGEST_NUMBER = 1e38
SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)
SMALLEST_SHARE = 2.0**-44
ID_NAMES = (
    "id", "ids", "index", "idx", "uuid", "guid", "key", "row", "nr", "no", "n°", "№", "#", "编号", "序号",
    "学号", "номер", "rownames", "matricule", "sku", "ean", "gtin", "isbn", "imei", "ssn", "uid", "pid",
    "obs", "seqn", "respondent", "sampleid", "subjectid", "sessionid", "deviceid", "storeid", "movieid",
    "rowid", "recordid", "personid", "passengerid", "eventid", "imageid", "vehicleid", "caseid",
)  # fmt: skip
_CODES = "id|code|c[óo]digo|codice|num|num[ée]ro|número|number|nummer|nr|no|n°|r[ée]f|r[ée]f[ée]rence"
_CODED = (
    "user|client|cliente|customer|kunden?|patient|student|member|membre|mitglied|employee|mitarbeiter"
    "|product|produit|producto|prodotto|produkt|item|article|artikel|order|commande|bestell|auftrag|invoice"
    "|facture|rechnung|account|compte|konto|contract|contrat|vertrag|dossier|akten?|case|ticket|supplier"
    "|fournisseur|lieferanten?|transaction"
)
ORDERED_NAMES = (
    "year", "jahr", "month", "day", "age", "time", "date", "x", "t", "step", "epoch", "hour", "week",
    "timestamp", "quarter", "size",
)  # fmt: skip
NAMELESS = r"column 1|unnamed: [\d.]+|row name|index|level_\d|__index_level_\d__|"
_SAVED_INDEX = r"Unnamed: [\d.]+|level_\d|__index_level_\d__"  # repeats its numbers after tables are joined
IMAGES = r"\.(jpe?g|jfif|png|gif|bmp|webp|tiff?|ppm|pgm|pbm|heic|heif|avif)(\?\S*)?$"
_SIDES = "|".join((*TRAIN_WORDS, *VALIDATION_WORDS))
SPLITS = rf"(?i)(?:public|private)?[ _-]?(?:{_SIDES})[ _-]?(?:set|data|集)?[0-9]?"
IDEOGRAPHS = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{ac00}-\x{d7af}\x{0e00}-\x{109f}\x{1780}-\x{17ff}]"
_BODY = r"[0-9][0-9.,'’´\x{a0}\x{2007}\x{2009}\x{202f} ]*(?:[eE][+-]?[0-9]+)?|[.,][0-9]+(?:[eE][+-]?[0-9]+)?"
_POINTED = r"(?:^|[^0-9.,])[1-9][0-9]{1,2}\.[0-9]{3}(?:$|[^0-9.,])"
EUROS = ("€", "EUR", "Euro")  # amounts in euros have two decimals, or points between thousands
EVERY_THREE = "every separator has three digits after it"
FLAGGED, FLAGS = "H or L", ("L", "LL", "H", "HH", "↑", "↓", "▲", "▼")  # of laboratories: 129 L, 7.1 (H)
_NUMBER_HERE = "\u0001"  # replaces the number while the rest of a cell is examined
_SIGN, _GAP = r"[-+−–(]?", r"[\s\x{a0}\x{2007}\x{2009}\x{202f}]*"
# After a number: 1234/-, 12.—, a footnote's 1234* or 1234[2].
_TAIL = r"(?:/-|\.?[—–]|\.-|\*{1,3}|\[[0-9a-z]{1,2}\]|[†‡])"
# Letters allowed before a number; other letters make the cell a name, such as A-17.
_CURRENCIES = re.compile(
    r"(?i)(?:[A-Z]{0,3}\$|kr\.?|s?fr\.?|rs\.?|zł|usd|eur|gbp|chf"
    r"|jpy|cny|rmb|inr|sek|nok|dkk|pln|czk|huf|ron"
    r"|rub|try|brl|mxn|cad|aud|nzd|zar|krw|sgd|hkd|ils|aed|idr|rp\.?|myr|rm|thb|vnd|php|twd|uah|ngn|kes|kshs?"
    r"|egp|sar|qar|kwd|pkr|bdt|lkr|ars|clp|cop|pen|s/\.?|bs\.?|bgn|isk|euros?|tl|ca\.|c\.)"
)
# (decimal mark, thousands separator). Of the pairs that fit the same number of cells, the first one is used.
_MARKS = ((",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"), (".", ""))
# Digits of other scripts, and the signs in numbers whose meaning NFKC keeps: １２．５, ١٢٫٥.
_ZEROS = "０٠۰०০๐"
_WIDE_DIGITS = "".join(chr(ord(zero) + digit) for zero in _ZEROS for digit in range(10))
_WIDE, _NARROW = _WIDE_DIGITS + "．，－＋％￥＄：／٫٬", "0123456789" * len(_ZEROS) + ".,-+%¥$:/.,"
DATE_FORMATS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%y", "%d %b %Y", "%b %d %Y", "%d %b %y", "%Y %b %d",
    "%Y年%m月%d日", "%Y년%m월%d일", "%Y-%m", "%b %Y", "%m/%Y", "%Y%m%d", "%b %y",
)  # fmt: skip
# Beginnings of the names of months in English, German, French, Spanish, Italian, Portuguese and Dutch.
MONTHS = {
    "Jan": "jan|jän|ene|gen", "Feb": "feb|fév|fev", "Mar": "mar|mär|mrz|maa|mrt", "Apr": "apr|avr|abr",
    "May": "may|mai|mag|mei", "Jun": "jun|juin|giu", "Jul": "jul|juil|lug", "Aug": "aug|aoû|aou|ago",
    "Sep": "sep|set", "Oct": "oct|okt|ott|out", "Nov": "nov", "Dec": "dec|dez|déc|dic",
}  # fmt: skip
_MONTH = "|".join(MONTHS.values())
_WEEKDAY = (
    r"(?:(?:mon|tue|wed|thu|fr|sa|sá|sun|so|mo|mi|lun|mardi|martes|martedì|mer|jeu|jue|gio|ven|vie|dim|dom)\pL*"
    r"|di|do|dienstag|donnerstag)[.,]* +"
)
_TIME = r"[0-9]{1,2}(?::[0-9]{2}|[hH][0-9]{2}|Uhr)"
DAY_OR_MONTH = "day and month could be the other way round"
SERIAL_DAYS = "days since 1899-12-30, as spreadsheets count"
YEAR_OR_DAY, NO_YEAR = "the number could be a day", "the number is hardly a year"
DATE_LETTERS = (
    ("%Y", "YYYY"), ("%y", "YY"), ("%m", "MM"), ("%d", "DD"), ("%b", "month"),
)  # fmt: skip
_ARE_CODES = (
    "min(length(v)) >= 4 AND min(length(v)) = max(length(v)) AND bool_or(starts_with(v, '0')) "
    "AND NOT bool_or(contains(v, '.'))"
)
# 1.266 and 970, but no 1.26 and no 1266.
_ARE_GROUPED = (
    "min(length(v) - strpos(v, '.')) FILTER (contains(v, '.')) = 3 "
    "AND max(length(v) - strpos(v, '.')) FILTER (contains(v, '.')) = 3 "
    "AND max(length(v)) FILTER (NOT contains(v, '.')) = 3 AND max(length(v)) <= 7 "
    "AND bool_and(v = '0' OR v BETWEEN '1' AND ':') AND count(v) FILTER (contains(v, '.')) >= 10"
)
_LIKE_A_DATE = (
    r"(?i)(?:\pL{2,10}[.,]* +)?(?:[0-9]{1,4}[-/. ] ?[0-9]{1,2}[-/. ] ?[0-9]{1,4}.*"
    r"|[0-9]{4}-[0-9]{1,2}|[0-9]{1,2}/[0-9]{4}|[12][0-9]{7}(?:T[0-9]{4,6}Z?)?|[0-9]{4}[年년].*"
    rf"|(?:[0-9]{{1,4}}\pL{{0,2}}[-. ]{{0,2}}(?:de )?(?:{_MONTH})\pL*|(?:{_MONTH})\pL*[-., /'’])"
    r".*[0-9]{2,4}.*)"
)
# Phone numbers: +49 30 1234567, (555) 123-4567, 0171/2345678, 555-123-4567.
_PHONE = (
    r"\+[0-9]{1,3}[ ./(-][0-9 ./()-]{8,20}|\+[0-9]{10,15}|\(?0[0-9]{1,5}\)?[ /-][0-9 /-]{5,14}"
    r"|\(?[0-9]{3}\)?[ .-][0-9]{3}[ .-][0-9]{4}|0[0-9](?:[ .][0-9]{2}){4}"
)
_PHONE_NAME = (
    r"(?i)(?:.*[^a-z])?(?:tele)?(?:phone|fon|fono|tel|mobile?|handy|fax|whatsapp)"
    r"(?:[^a-z]*(?:nr|no|num|nummer|number|home|work|private?|office|business))*[^a-z]*|.*(?:电话|手机)(?:号码?)?[\W0-9]*"
)
_CODE_NAME = (
    r"(?i)(?:.*[^a-z])?"
    r"(?:plz|zip|zip ?code|post ?code|postal ?code|postleitzahl|code ?postal)"
)
ADDRESSES = "postal addresses"
_ADDRESS_NAME = "address|adres|anschrift|direcci|indirizzo|endere|地址|住所"
# 12 bis rue du Lac; 7 N. Oak St., Salem; Via Roma 3; Am Waldweg 5, 10115 Berlin.
_ADDRESS = (
    r"(?i)[0-9]{1,5} ?[a-z]?\b[^,!?]{0,40}\b(?:street|st|avenue|ave?|road|rd|lane|ln|drive|dr|boulevard|bd"
    r"|way|court|ct|place|square|highway|rue|chemin|allée|impasse|quai|route)\b.*"
    r"|(?:calle|c/|avenida|avda|plaza|paseo|via|viale|piazza|corso|rua|praça|travessa)\b[^!?0-9]{0,50}[0-9].*"
    r"|[^,!?0-9]{0,40}(?:stra(?:ß|ss)e|str\.?|weg|platz|allee|gasse|ring|damm|ufer|straat|laan|plein) [0-9].*"
)
# Two numbers in one cell: 52.52, 13.405; (52.52 13.405); a blood pressure, 120/80 mmHg. Without the unit, the
# name has to say so: 195/65 is a tyre, 70/71 a season.
_COORDINATES = r"[(\[]?\s*([-+]?[0-9]{1,3}\.[0-9]+)\s*[,; ]\s*([-+]?[0-9]{1,3}\.[0-9]+)\s*[)\]]?"
_PRESSURE, _OF_MERCURY = r"([0-9]{2,3})\s*/\s*([0-9]{2,3})", r"\s*(?i)mm ?hg"
_PAIR = f"{_COORDINATES}|{_PRESSURE}{_OF_MERCURY}"
_PRESSURE_NAME = r"(?i)bp|rr|nibp|.*(?:blood|blut|pressure|mm ?hg|presión|tension|血压).*"
# Forms of cells that are rewritten as plain numbers before they are read.
WIDE, UNCERTAIN, FEET, FRACTION, MINUTES = "wide", "uncertain", "feet", "fraction", "minutes"
POWER, ORDINAL, DEGREES, LIMITED, SERIAL = "power", "ordinal", "degrees", "limited", "serial"
# Sums of several units, or amounts in different ones: 2h 5m 30s, PT1H20M, 5 lb 3 oz, 2yrs 11mon. The number
# of the smallest unit is read.
_DAY, _MINUTE = "d(?:ays?)?|tage?n?|jours?", "m(?:ins?|inutes?|inuten)?"
_SUMS: dict[str, tuple[tuple[str, str], ...]] = {
    MINUTES: (
        (_DAY, "1440"), ("h(?:rs?|ours?)?|std|stunden?|heures?", "60"), (_MINUTE, "1"),
        ("s(?:ecs?|econds?|ek|ekunden?)?", "1/60"),
    ),
    "days": (("w(?:ks?|eeks?)?|wochen?|semaines?", "7"), (_DAY, "1")),
    "months": (("y(?:rs?|ears?)?|jahre?|ans?", "12"), ("m(?:os?|on|onths?|onate?|ois)?", "1")),
    "ounces": (("st|stones?", "224"), ("lbs?|pounds?", "16"), ("oz|ounces?", "1")),
    "grams": (("kgs?|kilos?", "1000"), ("g|gr|grams?|gramm", "1")),
    "milligrams": (("g|gr|grams?|gramm", "1000"), ("mg", "1")),
    "centimetres": (("m|met(?:er|re)s?", "100"), ("cm", "1")),
    "metres": (("km", "1000"), ("m|met(?:er|re)s?", "1")),
    "millilitres": (("l|lit(?:er|re)s?", "1000"), ("ml", "1")),
    "megabytes": (("tb", "1000000"), ("gb", "1000"), ("mb", "1"), ("kb", "1/1000")),
}  # fmt: skip
_PART = r"(?:([0-9]+(?:\.[0-9]+|,[0-9]{1,2})?)\s*(?:%s)\.?(?:[\s,T]|and|und)*)?"
_LIMIT = (
    r"^(?:[<>]=?|[≤≥⩽⩾~≈]|&[lg]t;|(?i:ca\.?|approx\.?|about|etwa|under|over|(?:less|more) than|unter|über"
    r"|moins de|plus de)\s)\s*"
)
_MORE = r"\s(?i:(?:and|or) (?:over|above|older|more)|(?:und|oder) (?:mehr|älter)|et plus)$"
_UNCERTAINTY = r"\s*(?:±|\+/[-−]|\+[-−])\s*[0-9][0-9.,]*"
# After a number: x 10^3, and digits of a unit, as in 10^3/µL and mL/min/1.73m2.
_TIMES = r"\s*[x×*·\s]\s*10 ?(?:\^|\*{1,2}|[eE]) ?([-+]?[0-9]+)"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = {raised: chr(digit) for digit, raised in _RAISED.items()}
_FORM_PATTERNS = {
    POWER: (
        r"([-+−]?[0-9][0-9.,]*)"
        r"(\s*[x×*·\s]\s*10(?: ?(?:\^|\*{1,2}|[eE]) ?[-+−]?[0-9]+|[⁻⁰¹²³⁴-⁹]+)[^0-9]{0,12}[23]?"
        r"|\s?\pL[^0-9]{0,10}/ ?[0-9][0-9.,]* ?\pL.{0,5})()"
    ),
    UNCERTAIN: rf"[-+−]?[0-9][0-9.,]*{_UNCERTAINTY}\D{{0,12}}",
    FEET: (
        r"([0-9]{1,2})\s*(?:'|’|′|ft\.?|feet)\s*"
        r"(?:((?:1[01]|0?[0-9])(?:\.[0-9]+)?)\s*(?:\"|”|″|''|’’|′′|in\.?|inch(?:es)?)?)?"
    ),
    # Other denominators are more likely days and months, scores, or a blood pressure such as 120/80.
    FRACTION: (
        r"(?:([0-9]{1,3})[ -])?([0-9]{1,2}(?:\.[0-9])?)\s*(?:/|out of|von|sur)\s*"
        r"(2|3|4|5|6|8|10|12|16|20|32|64|100)\s*(?:\"|”|″|in\.?|inch(?:es)?)?"
    ),
    **{
        form: ("(?i)" if form == MINUTES else "(?i)P?") + "".join(_PART % unit for unit, _ in parts)
        for form, parts in _SUMS.items()
    },
    ORDINAL: r"([0-9]{1,5})\s?(?i:st|nd|rd|th)()()",
    # Only with its sign: 60 W is a power. O is west in French and east in German.
    DEGREES: (
        r"([0-9]{1,3}(?:\.[0-9]+)?)\s?[°º]\s?(?:([0-9]{1,2}(?:\.[0-9]+)?)\s?['’′]\s?)?"
        r"(?:([0-9]{1,2}(?:\.[0-9]+)?)\s?(?:\"|”|″|''|’’|′′)\s?)?[NSEW]"
    ),
    SERIAL: r"[2-5][0-9]{4}",
    LIMITED: rf"(?:{_LIMIT}[0-9][0-9., ]*|[0-9][0-9., ]*(?:\+|{_MORE}))[^0-9]{{0,12}}",
}
# Units of the rewritten numbers; cells with another unit have to be converted first.
_FORM_UNITS = {
    FEET: r"in\.?|inch(es)?|\"|”|″", FRACTION: r"in\.?|inch(es)?|\"|”|″", **dict.fromkeys(_SUMS, "")
}  # fmt: skip
_FORM_LINES = {
    WIDE: " in digits of another script",
    POWER: " with powers of ten: 5.2 x 10^3 is read as 5200",
    UNCERTAIN: " without its uncertainty: 12 ± 3 is read as 12",
    FEET: " of inches: 5'11\" is read as 71",
    FRACTION: ": the fraction 1/8 is read as 0.125",
    **{form: f" of {form}" for form in _SUMS},
    MINUTES: " of minutes: 1h 30min is read as 90",
    LIMITED: "",
    ORDINAL: ": 1st is read as 1",
    DEGREES: " of degrees: 52°30'S is read as -52.5",
}


@dataclass(frozen=True, kw_only=True)
class Notation:
    """The number format of a column."""

    decimal: str = "."
    thousands: str = ""
    unit: str = ""
    is_plain: bool = False  # as written by programs: 1234.5, -1e-3
    is_time: bool = False  # 13:45 or 1:45 PM, read as hours
    is_short: bool = False  # times in which 1:23.4 is minutes and seconds
    is_scaled: bool = False  # 565K and 1.5M in the same column

    @property
    def pattern(self) -> str:
        """A regular expression that matches exactly these numbers."""
        if self.is_short:
            return r"(?:[0-9]{1,3}:)?[0-9]{1,3}:[0-5][0-9](?:[.,][0-9]+)?"
        if self.is_time:
            return r"(?i)[0-9]{1,3}:[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?(?:\s?[ap]\.?m\.?|\s?uhr)?"
        point = re.escape(self.decimal)
        marks = {" ": r"[ \x{a0}\x{2007}\x{2009}\x{202f}]", "'": "['’´]"}
        mark = marks.get(self.thousands, re.escape(self.thousands))
        whole = "[0-9]+"
        if mark:
            indian = f"[1-9][0-9]?(?:{mark}[0-9]{{2}})+{mark}[0-9]{{3}}"
            whole = f"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+|{indian}|[0-9]+)"
        before, is_around, after = self.unit.partition(_NUMBER_HERE)
        after = after if is_around else before
        scale = f"(?:{'|'.join(MAGNITUDES)})?" if self.is_scaled else ""
        number = rf"(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?"
        # 12- EUR is negative, and the hyphen of 3-door is not a sign.
        is_word = re.search(r"[^\W\d_]", after) and not _CURRENCIES.fullmatch(after)
        end = f"{_GAP}{scale}{'' if is_word else '-?'}{_GAP}\\(?{_unit_pattern(after)}[)+-]?{_TAIL}?"
        return f"{_SIGN}{_GAP}{_unit_pattern(before)}{_GAP}{_SIGN}{_GAP}{number}{end}"

    def sql(self, cell: str) -> str:
        """Return SQL of the cell as a number; NULL if it is not one."""
        if self.is_plain:
            return f"TRY_CAST(translate({cell}, '_(', 'xx') AS DOUBLE)"  # 1_000 and nan(1) are names
        matches = f"regexp_full_match({cell}, {literal(self.pattern)})"
        if self.is_time:
            point = f"replace({cell}, ',', '.')"
            form = "([0-9]+:)?([0-9]+):([0-9.]+)" if self.is_short else "([0-9]+):([0-9]+):?([0-9.]*)"
            parts = [f"coalesce({_group(point, form, index)}, 0)" for index in (1, 2, 3)]
            half_day = f"CASE WHEN {cell} ILIKE '%p%m%' THEN 12 ELSE 0 END"
            hours = f"CASE WHEN {cell} ILIKE '%m%' THEN {parts[0]} % 12 + {half_day} ELSE {parts[0]} END"
            return f"CASE WHEN {matches} THEN {hours} + {parts[1]} / 60 + {parts[2]} / 3600 END"
        body = f"regexp_extract({cell}, {literal(_BODY)})"
        gone = {"'": "'’´"}.get(self.thousands, self.thousands) + " \u00a0\u2007\u2009\u202f"
        body = f"translate({body}, {literal(gone)}, '')"
        if self.decimal == ",":
            body = f"replace({body}, ',', '.')"
        sign = rf"CASE WHEN regexp_matches({cell}, '^[^0-9]*[-−–(]|[0-9]-|[^-.,/]-$') THEN -1 ELSE 1 END"
        if self.is_scaled:
            longest = "|".join(sorted(MAGNITUDES, key=len, reverse=True))  # M is also in Mrd.
            letters = f"regexp_extract({cell}, '[0-9]\\s*({longest})', 1)"
            cases = " ".join(f"WHEN '{letter}' THEN {value!r}" for letter, value in MAGNITUDES.items())
            sign = f"{sign} * CASE {letters} {cases} ELSE 1 END"
        return f"CASE WHEN {matches} THEN {sign} * TRY_CAST({body} AS DOUBLE) END"

    def words(self) -> str:
        """Return a description of how the format differs from plain numbers."""
        if self.is_time:
            return "minutes and seconds, as hours" if self.is_short else "hours and minutes"
        names = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
        parts = ["a decimal comma"] if self.decimal == "," else []
        parts += [f"{names[self.thousands]} between thousands"] if self.thousands else []
        what = "flags such as" if self.unit == FLAGGED else "the unit"
        parts += [f"{what} {self.unit.replace(_NUMBER_HERE, ' … ')}"] if self.unit else []
        parts += ["letters for thousands and millions"] if self.is_scaled else []
        return " and ".join(parts) or "signs of its own"


MAGNITUDES = {
    "thousand": 1e3, "Thousand": 1e3, "million": 1e6, "Million": 1e6, "Millionen": 1e6, "billion": 1e9,
    "Billion": 1e9, "trillion": 1e12, "mln": 1e6, "k": 1e3, "K": 1e3, "Tsd.": 1e3, "Mio.": 1e6,
    "Mio": 1e6, "Mn": 1e6, "mn": 1e6, "M": 1e6, "Mrd.": 1e9, "Mrd": 1e9, "Lakhs": 1e5, "Lakh": 1e5,
    "Lacs": 1e5, "Lac": 1e5, "Crore": 1e7, "Cr": 1e7, "bn": 1e9, "Bn": 1e9, "B": 1e9, "T": 1e12, "万": 1e4,
    "亿": 1e8, "億": 1e8,
}  # fmt: skip
PLAIN = Notation(is_plain=True)
_NUMBER_TESTS = {
    "plain": f"{PLAIN.sql('v')} IS NOT NULL",
    "long": "regexp_matches(v, '^[-+]?[0-9]{4,}')",
    "pointed": f"regexp_matches(v, {literal(_POINTED)})",  # 123.450
    "whole": "NOT regexp_matches(v, '[.,]')",
    "share": "regexp_matches(v, '^0?[.,][0-9]+$')",
    **{sign: f"regexp_matches(v, '[0-9][{sign}]$')" for sign in "+-"},
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """The decision about one column, and statistics of its cells.

    Attributes:
        missing: spellings of a missing value that occur in it.
        confidence: "high", "medium" if another interpretation is possible, or "low".
        reason: reason for the kind, as the second half of a sentence.
        date_format: strptime format of a column of dates.
        words, characters: mean number per cell.
        num_numbers: number of cells that are numbers; `num_too_large` of them exceed float32.
        is_chosen: True if the user has chosen the kind.
        example: a cell in an unusual number format, and the number that it is read as.
        form: WIDE for numbers or dates with digits of other scripts, such as １２ or ١٢, or a key of
            _FORM_PATTERNS for numbers of that form; empty for others.
    """

    index: int
    name: str
    kind: str
    num_rows: int = 0
    num_present: int = 0
    num_distinct: int = 0
    missing: tuple[str, ...] = ()
    reason: str = ""
    confidence: str = "high"
    notation: Notation = PLAIN
    date_format: str = ""
    words: float = 0.0
    characters: float = 0.0
    ideographs: bool = False
    num_numbers: int = 0
    num_too_large: int = 0
    all_whole: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    quartiles: tuple[float, float, float] = (0.0, 0.0, 0.0)
    is_chosen: bool = False
    example: tuple[str, str] = ("", "")
    form: str = ""

    @property
    def where(self) -> str:
        """The column, as the place of a problem."""
        return f"column {quoted(self.name)}"

    @property
    def num_missing(self) -> int:
        return self.num_rows - self.num_present

    @property
    def all_different(self) -> bool:
        return self.num_distinct == self.num_present and self.num_present > 0

    @property
    def is_too_close(self) -> bool:
        """True if its numbers differ by less than the resolution of the computations."""
        size = max(abs(self.highest), abs(self.lowest))
        spread = self.highest - self.lowest
        return self.num_numbers > 0 and spread < max(SMALLEST_SPREAD, SMALLEST_SHARE * size)

    @property
    def cell(self) -> str:
        """SQL of a cell as text; NULL for a missing value."""
        written = plain = column(self.index)
        if self.form and self.kind in (NUMBER, MIXED, DATE):
            plain = _rewritten(plain, self.form)
        if not self.missing:
            return plain
        spelled = plain if self.form == WIDE else written
        return f"CASE WHEN {spelled} IN ({', '.join(map(literal, self.missing))}) THEN NULL ELSE {plain} END"

    @property
    def number(self) -> str:
        """SQL of a cell as a number; NULL for a missing value and for a cell that is not a number."""
        return self.notation.sql(self.cell)

    @property
    def date(self) -> str:
        """SQL of a cell as a date."""
        return _parsed(_spelled(self.cell, self.date_format), self.date_format)

    def coordinate(self, index: int) -> str:
        """Return SQL of the first (1) or second (2) number of a cell with coordinates."""
        pattern = f"^(?:{_COORDINATES}|{_PRESSURE}(?:{_OF_MERCURY})?)$"
        numbers = [_group(self.cell, pattern, each) for each in (index, index + 2)]
        return f"coalesce({', '.join(numbers)})"

    def line(self, *, is_label: bool = False) -> str:
        """Return the decision in one line, without the column's name."""
        what = {MIXED: "number"}.get(self.kind, self.kind)
        if self.kind in (NUMBER, MIXED) and not self.notation.is_plain:
            what += f" with {self.notation.words()}, {self.example[0]} → {self.example[1]}"
        elif self.kind == DATE and not is_label:
            form = self.date_format
            for code, letters in DATE_LETTERS:
                form = form.replace(code, letters)
            what += f" ({form}): becomes year, month, weekday and elapsed days"
        elif self.kind == COORDINATES and not is_label:
            what += ": becomes two numbers"
        elif self.kind == SPLIT and not is_label:
            what += " into training and validation"
        elif self.kind in LEFT_OUT and self.kind != IGNORED and not is_label:
            what += ", ignored"
        if self.form and self.kind in (NUMBER, MIXED):
            is_unit = self.form == POWER and self.notation.unit
            what = what.translate(_LOWERED) if is_unit else what + _FORM_LINES[self.form]
        if self.missing and self.num_missing:
            shown = ", ".join(f"‘{each}’" for each in self.missing[:3])
            what += f"; {shown} {'means' if len(self.missing) == 1 else 'mean'} missing"
        return what if not self.reason or self.is_chosen else f"{what}: {self.reason}"


def read_columns(table: Table, reading: Mapping[str, Any]) -> list[Column]:
    """Decide what each column holds, unless the user has chosen its kind in `columns` of `data_reading`."""
    columns: list[Column] = []
    for indices in table.batches(range(len(table.names))):
        columns += _Batch(table, indices, reading).columns()
    columns = _resolved(table, columns)
    columns = _with_numbers(table, columns)
    num_features = sum(each.kind in LEARNED for each in columns)
    return _find_identifiers(table, columns, num_features > 2)


def frequent_values(
    table: Table, columns: Sequence[Column], max_values: int
) -> dict[int, list[tuple[str, int]]]:
    """Return the most frequent values of columns and their counts, by column index."""
    values_by_index: dict[int, list[tuple[str, int]]] = {each.index: [] for each in columns}
    for index, value, count in query_cells(
        table,
        columns,
        "SELECT col, v, count(*) AS n FROM CELLS WHERE v IS NOT NULL GROUP BY col, v "
        f"QUALIFY row_number() OVER (PARTITION BY col ORDER BY n DESC, v) <= {max_values} "
        "ORDER BY col, n DESC, v",
    ):
        values_by_index[index].append((str(value), count))
    return values_by_index


def query_cells(
    table: Table, columns: Sequence[Column], sql: str, *, label: str = "NULL", as_numbers: bool = False
) -> Iterator[Row]:
    """Yield the rows of a query for each group of columns.

    Args:
        sql: selects from CELLS, which has one row per cell: row number `row`, column index `col`, cell `v`
            and the row's label `l`.
        label: SQL of the label.
        as_numbers: True to return `v` as a number instead of text.
    """
    for batch in table.batches(columns):
        cells = _long_cells(batch, label=label, as_numbers=as_numbers)
        # Not every "CELLS": the query may contain a unit of the user's, such as CELLS/µL.
        yield from table.query(sql.replace("FROM CELLS", f"FROM {cells}"))


def _long_cells(batch: Sequence[Column], *, label: str = "NULL", as_numbers: bool = False) -> str:
    cells = [each.number if as_numbers else each.cell for each in batch]
    if len(batch) == 1:
        return f"(SELECT row, {batch[0].index} AS col, {cells[0]} AS v, {label} AS l FROM rows)"
    indexes = ", ".join(str(each.index) for each in batch)
    columns_of_cells = f"unnest([{indexes}]) AS col, unnest([{', '.join(cells)}]) AS v"
    return f"(SELECT row, {columns_of_cells}, {label} AS l FROM rows)"


class _Batch:
    """Some columns of a table, and their distinct values in the SQL table `vals` (col, v, count n)."""

    def __init__(self, table: Table, indices: Sequence[int], reading: Mapping[str, Any]) -> None:
        requested, missing = reading.get("columns", {}), reading.get("missing", {})
        names = {index: table.names[index] for index in indices}
        self._table = table
        self._chosen = {index: str(requested.get(name, "")) for index, name in names.items()}
        self._extra = {index: tuple(map(str.lower, missing.get(name, ()))) for index, name in names.items()}
        self._codes: set[int] = set()
        self._grouped: set[int] = set()  # 1.266 and 970: points are between thousands
        self._whole: set[int] = set()  # all plain numbers are whole
        self._profiles = self._count(indices)
        self._spelled: dict[int, list[tuple[str, int]]] = {index: [] for index in indices}
        self._shares: dict[int, dict[str, int]] = {}  # per column: number of cells of each form
        self._doubts: dict[int, str] = {}  # why cells that look like numbers are not read as such

    def columns(self) -> list[Column]:
        """Return the decision about each column, in order."""
        by_index: dict[int, Column] = {}
        for index, profile in self._profiles.items():
            is_plain = profile.num_numbers == profile.num_present
            if profile.num_present == 0:
                by_index[index] = replace(profile, kind=EMPTY, reason="no cell has a value")
            elif index in self._codes:
                by_index[index] = replace(profile, kind=CATEGORY, reason="codes with leading zeros")
            elif (
                is_plain
                and not self._chosen[index]
                and (kind_by_name := _kind_by_name(profile, is_whole=index in self._whole))
            ):
                by_index[index] = replace(
                    profile, kind=kind_by_name[0], reason=kind_by_name[1], confidence="medium"
                )
            elif (
                is_plain
                and not (self._chosen[index] or self._extra[index])
                and index not in self._grouped
                and not _may_be_date(profile)
            ):
                by_index[index] = replace(profile, kind=NUMBER)
        remaining = [index for index in self._profiles if index not in by_index]
        if remaining:
            self._collect_values(remaining)
            by_index |= self._dates(remaining)
            for index in remaining:
                if index not in by_index and (special := self._phones_or_coordinates(index)):
                    by_index[index] = special
            by_index |= self._numbers([index for index in remaining if index not in by_index])
            for index in remaining:
                if index not in by_index:
                    by_index[index] = self._other(self._profiles[index])
        return [by_index[index] for index in self._profiles]

    def _count(self, indices: Sequence[int]) -> dict[int, Column]:
        """Return counts of each column: cells, distinct values, plain numbers and mean lengths."""
        plain = PLAIN.sql("v")
        is_whole = f"bool_and({plain} = floor({plain}))"
        start = f"left(v, {MAX_EXAMINED})"
        names, num_rows = self._table.names, self._table.num_rows
        unread = {
            index: Column(index=index, name=names[index], kind="", num_rows=num_rows) for index in indices
        }
        rows = self._table.query(
            "SELECT col, count(v), count(DISTINCT v), coalesce(avg(length(v)), 0), "
            f"coalesce(avg(length({start}) - length(replace({start}, ' ', '')) + 1), 0), "
            f"count({plain}) FILTER (NOT isnan({plain})), "
            f"{', '.join(f'coalesce({test}, false)' for test in (_ARE_CODES, _ARE_GROUPED, is_whole))} "
            f"FROM {_long_cells(list(unread.values()))} GROUP BY col"
        )
        by_index = {}
        for index, present, distinct, characters, words, num_plain, *are in sorted(rows):
            is_able = num_plain == present and not self._chosen[index]
            for places_of, is_such in zip((self._codes, self._grouped, self._whole), are, strict=True):
                places_of |= {index} if is_such and is_able else set()
            counts = {"num_present": present, "num_distinct": distinct, "num_numbers": num_plain}
            means = {"characters": characters, "words": words}
            by_index[index] = replace(unread[index], **counts, **means, is_chosen=bool(self._chosen[index]))
        return by_index

    def _collect_values(self, indices: Sequence[int]) -> None:
        """Fill `vals` for some columns, without spellings of missing values."""
        self._profiles |= {index: replace(self._profiles[index], missing=()) for index in indices}
        unread = [self._profiles[index] for index in indices]
        self._table.store(
            "vals",
            f"SELECT col, left(v, {MAX_EXAMINED}) AS v, count(*) AS n FROM {_long_cells(unread)} "
            f"WHERE v IS NOT NULL GROUP BY ALL",
        )
        wide = {index for (index,) in self._table.query(
            f"SELECT DISTINCT col FROM vals WHERE regexp_matches(v, {literal(f'[{_WIDE_DIGITS}]')})"
        )}  # fmt: skip
        if wide:
            self._rewrite(sorted(wide), WIDE)
        spellings = [f"lower(v) IN ({', '.join(map(literal, MISSING_NUMBER))})"]
        spellings += [
            f"(col = {index} AND lower(v) IN ({', '.join(map(literal, self._extra[index]))}))"
            for index in indices
            if self._extra[index]
        ]
        spelled = f"({' OR '.join(spellings)})"
        for index, value, count in self._table.query(
            f"SELECT col, v, n FROM vals WHERE {spelled} ORDER BY col, n DESC, v"
        ):
            self._spelled[index].append((value, count))
        self._table.execute(f"DELETE FROM vals WHERE {spelled}")
        foreign = f"sum(n * (length(v) - length(regexp_replace(v, {literal(IDEOGRAPHS)}, '', 'g'))))"
        patterns = {
            "dates": _LIKE_A_DATE, "splits": SPLITS, "phones": _PHONE, "pairs": _PAIR, "pressures": _PRESSURE,
            "addresses": _ADDRESS,
        }  # fmt: skip
        tests = {name: f"regexp_full_match(v, {literal(pattern)})" for name, pattern in patterns.items()}
        tests |= {form: _has_form("v", form) for form in _FORM_PATTERNS}
        tests["digits"] = "regexp_matches(v, '[0-9]')"
        tests["images"] = f"regexp_matches(v, {literal('(?i)' + IMAGES)})"
        names = [*tests, "ideographs", "present", "distinct"]
        self._shares = {index: dict.fromkeys(names, 0) for index in indices}
        for index, *values in self._table.query(
            f"SELECT col, {', '.join(map(_sum_where, tests.values()))}, {foreign}::BIGINT, sum(n)::BIGINT, "
            "count(v) FROM vals GROUP BY col"
        ):
            self._shares[index] = dict(zip(names, values, strict=True))
        for index in indices:
            profile, shares = self._profiles[index], self._shares[index]
            is_foreign = shares["ideographs"] >= MIN_IDEOGRAPHS * max(1, profile.num_present)
            self._profiles[index] = replace(profile, ideographs=is_foreign)
            for form in _FORM_PATTERNS:
                is_usual = shares[form] > (0 if form == LIMITED else 0.5 * shares["present"])
                chosen = self._chosen[index]
                if form == SERIAL:
                    is_usual = shares[form] == shares["present"] and (chosen == DATE or _may_be_date(profile))
                is_able = chosen in ("", DATE if form == SERIAL else NUMBER)
                is_able = is_able and not self._profiles[index].form
                if is_usual and is_able and self._are_numbers(index, form):
                    self._rewrite([index], form)
                    shares["dates"] += shares[form] * (form == SERIAL)

    def _are_numbers(self, index: int, form: str) -> bool:
        """Return False if the cells of a form are more likely classes, such as <=50K and >50K."""
        if form in (LIMITED, *_SUMS) and self._shares[index][LIMITED]:
            # Limits stand among numbers, and no two of them at the same number.
            limited, digits = _has_form("v", LIMITED), "regexp_replace(v, '[^0-9.,]', '', 'g')"
            number = "[-+]?[0-9][0-9., ]*[^0-9]{0,12}" if form == LIMITED else ".*"
            is_number = f"NOT {limited} AND regexp_full_match(v, {literal(number)})"
            are_limits = self._table.value(
                f"SELECT count(DISTINCT v) FILTER ({limited}) = count(DISTINCT {digits}) FILTER ({limited}) "
                f"AND 2 * coalesce(sum(n) FILTER ({is_number}), 0) > sum(n) FILTER (NOT {limited}) "
                f"FROM vals WHERE col = {index}"
            )
            if not are_limits:
                return False
        return form not in _SUMS or self._has_sums(index, form)

    def _has_sums(self, index: int, form: str) -> bool:
        """Return False if all cells of a form have the same unit, or one of a single letter such as 34M."""
        unit = f"regexp_replace(lower({_in_units('v', form)}), '[0-9.,\\s]+', '', 'g')"
        return bool(self._table.value(
            f"SELECT bool_or(regexp_matches(v, '(?i)^P|[0-9]\\D*\\pL\\D*[0-9]')) "
            f"OR (count(DISTINCT {unit}) > 1 AND max(length({unit})) > 1) "
            f"FROM vals WHERE col = {index} AND {_has_form('v', form)}"
        ))  # fmt: skip

    def _rewrite(self, indices: Sequence[int], form: str) -> None:
        """Rewrite the values of some columns as plain numbers."""
        self._table.execute(f"UPDATE vals SET v = {_rewritten('v', form)} WHERE col IN ({_listed(indices)})")
        self._profiles |= {index: replace(self._profiles[index], form=form) for index in indices}

    def _dates(self, indices: Sequence[int]) -> dict[int, Column]:
        """Return the columns that hold dates."""
        min_shares: dict[int, float] = {}
        for index in indices:
            profile, chosen = self._profiles[index], self._chosen[index].partition(",")[0]
            shares = self._shares[index]
            is_plain = profile.num_numbers == profile.num_present
            is_possible = shares["digits"] > 0.5 * profile.num_present and profile.characters < 60
            share = 0.01 if chosen else 1.0 if is_plain else 0.95
            if chosen not in ("", DATE) or (not chosen and not is_possible):
                continue
            if is_plain and not chosen and not _may_be_date(profile):
                continue
            if shares["present"] and shares["dates"] >= share * shares["present"]:
                min_shares[index] = share
        if not min_shares:
            return {}
        dates = {form: _parsed(f"s{SPELLINGS.index(_spelled('v', form))}", form) for form in DATE_FORMATS}
        spelled = ", ".join(f"{sql} AS s{index}" for index, sql in enumerate(SPELLINGS))
        expressions = ", ".join(f"count({date})" for date in dates.values())
        counted = self._table.query(
            f"SELECT col, count(v), {expressions} FROM (SELECT *, {spelled} FROM vals "
            f"WHERE col IN ({_listed(min_shares)}) "
            "QUALIFY row_number() OVER (PARTITION BY col) <= 200) GROUP BY col"
        )
        # Try all formats on 200 values per column first: most formats fit none, and each one costs a scan.
        possible = {
            index: [
                form
                for form, count in zip(DATE_FORMATS, counts, strict=True)
                if count > 0.5 * min_shares[index] * total and _has_order(form, self._chosen[index])
            ]
            for index, total, *counts in counted
        }
        for index, total, *counts in counted:
            second, first = sorted(counts)[-2:]
            if first < min_shares[index] * total <= first + second:
                self._doubts[index] = "dates in several formats"
        forms = [form for form in DATE_FORMATS if any(form in fitting for fitting in possible.values())]
        if not forms:
            return {}
        expressions = ", ".join(
            f"{_sum_where(f'{dates[form]} IS NOT NULL')}, count(DISTINCT {dates[form]})" for form in forms
        )
        columns = {}
        for index, *values in self._table.query(
            f"SELECT col, {expressions} FROM "
            f"(SELECT *, {spelled} FROM vals WHERE col IN ({_listed(min_shares)})) GROUP BY col"
        ):
            fits = {
                form: count for form, count in zip(forms, values[::2], strict=True) if form in possible[index]
            }
            best = max(fits.values(), default=0)
            if best < max(1, min_shares[index] * self._shares[index]["present"]):
                continue
            fitting = [form for form, count in fits.items() if count == best]
            reason = SERIAL_DAYS if self._profiles[index].form == SERIAL else _doubt_of_order(fitting)
            reason = self._doubt_of_year(index, fitting[0]) or reason
            if reason == NO_YEAR and not self._chosen[index]:
                continue
            columns[index] = replace(
                self._with_missing(self._profiles[index], MISSING_NUMBER),
                kind=DATE,
                date_format=fitting[0],
                confidence="medium" if reason else "high",
                reason=reason,
                num_present=best,
                num_distinct=values[2 * forms.index(fitting[0]) + 1],
            )
        return columns

    def _doubt_of_year(self, index: int, form: str) -> str:
        """Return why the numbers in Jan-21 or 2010-11 may be no year or month; else an empty string.

        There is no month if all cells are a year and the next one, and no year in cells of one month (Set 1,
        Set 2), with more words than months (Mark 40, Maria 41), or with numbers like the days of a month.
        """
        if form == "%Y-%m":
            next_year = "(TRY_CAST(left(v, 4) AS INTEGER) + 1) % 100 = TRY_CAST(right(v, 2) AS INTEGER)"
            is_season = self._table.value(f"SELECT bool_and({next_year}) FROM vals WHERE col = {index}")
            return NO_YEAR if is_season else ""
        if form != "%b %y":
            return ""
        ((months, words, minimum, maximum, has_mark),) = self._table.query(
            f"SELECT count(DISTINCT left({_spelled('v', '%b')}, 3)), count(DISTINCT lower(regexp_extract(v, "
            f"'\\pL+'))), min(y), max(y), bool_and(regexp_matches(v, '[''’]')) FROM (SELECT v, "
            f"TRY_CAST(regexp_extract(v, '[0-9]+') AS INTEGER) AS y FROM vals WHERE col = {index})"
        )
        if months == 1 or words > months + 1 or (minimum <= 7 and 27 <= maximum <= 31):
            return NO_YEAR
        return "" if has_mark or maximum > 31 else YEAR_OR_DAY

    def _phones_or_coordinates(self, index: int) -> Column | None:
        if self._chosen[index]:
            return None
        profile, shares = self._profiles[index], self._shares[index]
        if shares["phones"] > 0.95 * shares["present"]:
            phones = self._with_missing(profile, MISSING_NUMBER)
            return replace(phones, kind=IDENTIFIER, reason="phone numbers")
        pairs = self._with_missing(profile, MISSING)
        num_pairs = shares["pairs"]
        if re.fullmatch(_PRESSURE_NAME, profile.name):
            num_pairs += shares["pressures"]
        is_pair = 0 < num_pairs == pairs.num_present and not profile.form
        return replace(pairs, kind=COORDINATES) if is_pair else None

    def _numbers(self, indices: Sequence[int]) -> dict[int, Column]:
        """Return the columns of numbers, with their formats."""
        able = [index for index in indices if self._can_be_numbers(index)]
        if not able:
            return {}
        shapes: dict[int, dict[str, int]] = {index: {} for index in able}
        for index, shape, count in self._table.query(
            f"SELECT col, trim(regexp_replace(v, {literal(_BODY)}, '{_NUMBER_HERE}')) AS s, "
            f"sum(n)::BIGINT AS m FROM vals WHERE col IN ({_listed(able)}) GROUP BY col, s "
            "QUALIFY row_number() OVER (PARTITION BY col ORDER BY m DESC, s) <= 200 ORDER BY col, m DESC, s"
        ):
            shapes[index][shape] = count
        by_notations: dict[tuple[str, str, bool], list[int]] = {}
        other_cells = {}
        for index in able:
            form = self._profiles[index].form
            unscaled = {} if form in _FORM_UNITS else _without_magnitudes(shapes[index])
            unit, other_cells[index], units = _unit_of(unscaled or shapes[index])
            if unit and form in _FORM_UNITS and not re.fullmatch(_FORM_UNITS[form], unit.lower()):
                unit, units = "", [form, unit]
            if units:
                self._doubts[index] = (
                    f"numbers with different units: {', '.join(units[:4]).translate(_LOWERED)}"
                )
            decimal = {DECIMAL_COMMA: ",", DECIMAL_POINT: "."}.get(self._chosen[index], "")
            by_notations.setdefault((unit, decimal, bool(unscaled)), []).append(index)
        by_index = {}
        for (unit, decimal, is_scaled), some in by_notations.items():
            notations = [
                Notation(decimal=point, thousands=mark, unit=unit, is_scaled=is_scaled)
                for point, mark in _MARKS
                if decimal in ("", point)
            ] + [Notation(is_time=True), Notation(is_time=True, is_short=True)]
            tests = [f"regexp_full_match(v, {literal(each.pattern)})" for each in notations]
            expressions = ", ".join(map(_sum_where, [*tests, *_NUMBER_TESTS.values()]))
            for index, *values in self._table.query(
                f"SELECT col, {expressions} FROM vals WHERE col IN ({_listed(some)}) GROUP BY col"
            ):
                by_notation = dict(zip(notations, values, strict=False))
                counts = dict(zip(_NUMBER_TESTS, values[len(notations) :], strict=True))
                is_signed = counts["+"] + counts["-"] >= 0.2 * self._shares[index]["present"]
                if counts["+"] and counts["-"] and is_signed and not self._chosen[index]:
                    continue  # grades such as 2+ and 3-
                if (number := self._as_number(index, by_notation, counts, other_cells[index])) is not None:
                    by_index[index] = number
        return by_index

    def _can_be_numbers(self, index: int) -> bool:
        profile, chosen = self._profiles[index], self._chosen[index]
        is_plain = profile.num_numbers == profile.num_present
        num_digits = self._shares[index]["digits"]
        if chosen:
            return chosen in (NUMBER, DECIMAL_COMMA, DECIMAL_POINT)
        return is_plain or (profile.characters < 40 and num_digits > 0 and not self._are_images(profile))

    def _as_number(
        self, index: int, fits: Mapping[Notation, int], counts: Mapping[str, int], others: Mapping[str, int]
    ) -> Column | None:
        """Return the column as numbers, or None if too few cells are numbers.

        Args:
            fits: number of cells that are numbers in each format.
            counts: number of cells that meet each of `_NUMBER_TESTS`.
            others: number of cells of each value without a digit.
        """
        plain, num_long, num_whole = (counts[name] for name in ("plain", "long", "whole"))
        profile, chosen = self._profiles[index], self._chosen[index]
        present, distinct = self._shares[index]["present"], self._shares[index]["distinct"]
        # Words among numbers are missing values if they are known spellings, or one or two repeated words.
        guessed: set[str] = set()
        max_share = 0.7 if len(others) == 1 and distinct > MIN_FOR_IDENTIFIER else 0.3
        is_rare = sum(others.values()) < max_share * profile.num_present
        if 0 < len(others) <= 2 and min(others.values()) > 1 and is_rare and not _is_ordinal(others):
            guessed = set(others)
            present, distinct = present - sum(others.values()), distinct - len(others)
        best = max([*fits.values(), plain])
        if present == 0 or best == 0 or (best < MIXED_FROM * present and not chosen):
            points = [
                sum(fits[each] for each in fits if each.decimal == mark and not each.thousands) - num_whole
                for mark in ".,"
            ]
            if min(points) > 0 and sum(points) + num_whole >= 0.95 * present:
                self._doubts[index] = "numbers, some with a decimal point and some with a decimal comma"
            return None
        if not chosen and any(each.unit == "%" for each in fits) and counts["share"] >= 0.1 * present:
            self._doubts[index] = "numbers, some in percent and some as parts of 1"
            return None
        notation, confidence, reason = PLAIN, "medium" if guessed else "high", ""
        if plain < best or chosen == DECIMAL_COMMA or index in self._grouped:
            fitting = [each for each, count in fits.items() if count == best]
            plain_notation = replace(fitting[0], decimal=".", thousands="")
            notation = plain_notation if plain_notation in fitting else fitting[0]
            # Is 1,266 a thousand or one and a quarter? Thousands, unless longer numbers lack the separator.
            grouped = next((each for each in fitting if each.thousands), None)
            if index in self._grouped or (counts["pointed"] > 0.5 * best and notation.unit in EUROS):
                grouped = next((each for each in fitting if each.thousands == "."), grouped)
            is_ambiguous = (
                grouped is not None and not notation.thousands and notation.decimal != grouped.decimal
            )
            if grouped is not None and is_ambiguous and not chosen:
                notation = notation if num_long else grouped
                confidence = "medium"
                reason = "longer numbers have no separator" if num_long else EVERY_THREE
        if (num := self._shares[index][LIMITED]) and profile.form in (LIMITED, *_SUMS):
            limits = f"the limits in {num:,} of {present:,} cells, such as <5, 5+ and ~5, are read as 5"
            reason = f"{limits}; {reason}".rstrip("; ")
        spellings = {value for value, _ in self._spelled[index]}
        return replace(
            profile,
            kind=NUMBER if best == present else MIXED,
            missing=tuple(sorted(spellings | guessed)),
            notation=notation,
            num_present=present,
            num_distinct=distinct,
            confidence=confidence,
            reason=reason,
            num_numbers=best,
        )

    def _other(self, profile: Column) -> Column:
        """Return a column that has neither numbers nor dates: category, text or image names."""
        chosen = self._chosen[profile.index]
        if chosen in (IGNORED, CATEGORY, TEXT):
            return replace(self._with_missing(profile, MISSING), kind=chosen, reason="chosen")
        if chosen.startswith(DATE):
            return replace(profile, kind=CATEGORY, reason="no date could be read", confidence="low")
        if not chosen and self._are_images(profile):
            reason = "the cells are names of image files"
            return replace(self._with_missing(profile, MISSING), kind=FILE_NAME, reason=reason)
        if self._shares[profile.index]["splits"] == profile.num_present and self._is_split(profile):
            return replace(profile, kind=SPLIT)
        is_long = profile.ideographs or (profile.words >= MIN_TEXT_WORDS and self._has_words(profile))
        is_much = profile.num_distinct > 0.5 * profile.num_present or profile.num_distinct > 4 * MAX_ONE_HOT
        if is_long and is_much and profile.num_distinct > 1:
            if self._are_addresses(profile):
                return replace(self._with_missing(profile, MISSING), kind=IDENTIFIER, reason=ADDRESSES)
            return replace(self._with_missing(profile, ()), kind=TEXT)
        category = replace(self._with_missing(profile, MISSING), kind=CATEGORY)
        if profile.index in self._doubts:
            kind = IGNORED if profile.num_distinct > MAX_ONE_HOT else CATEGORY
            category = replace(category, kind=kind, reason=self._doubts[profile.index], confidence="low")
        return category

    def _is_split(self, profile: Column) -> bool:
        values = self._table.query(f"SELECT v FROM vals WHERE col = {profile.index} LIMIT 9")
        sides = {side_of(str(value)) for (value,) in values}
        return len(values) < 9 and len(sides) > 1 and "train" in sides

    def _has_words(self, profile: Column) -> bool:
        """Return True for texts rather than numbers, codes or JSON with spaces; examines 1,000 values."""
        words = r"len(regexp_extract_all(v, '[\pL\pM]{2,}'))"
        some = f"SELECT v FROM vals WHERE col = {profile.index} LIMIT 1000"
        return bool(self._table.value(f"SELECT avg({words}) >= {MIN_TEXT_WORDS - 1} FROM ({some})"))

    def _are_images(self, profile: Column) -> bool:
        num = self._shares[profile.index]["images"]
        return profile.characters < 300 and num >= 0.95 * profile.num_present

    def _are_addresses(self, profile: Column) -> bool:
        shares = self._shares[profile.index]
        num = shares["digits"] if re.search(_ADDRESS_NAME, profile.name.lower()) else shares["addresses"]
        return num > 0.8 * profile.num_present

    def _with_missing(self, profile: Column, spellings: Sequence[str]) -> Column:
        """Return a column in which some spellings, and those named by the user, are missing values."""
        requested = {*spellings, *self._extra[profile.index]}
        matches = [
            (value, count) for value, count in self._spelled[profile.index] if value.lower() in requested
        ]
        return replace(
            profile,
            missing=tuple(value for value, _ in matches),
            num_present=profile.num_present - sum(count for _, count in matches),
            num_distinct=profile.num_distinct - len(matches),
        )


def _may_be_date(profile: Column) -> bool:
    """Return True if plain numbers may be dates such as 20240131, or 45000 as spreadsheets count days."""
    if profile.characters == 5 and not re.search(r"(?i:(?<![a-z])(?:id|key|nr|sk)(?![a-z]))", profile.name):
        return re.search(r"(?i:(?<![a-z])(?:date|datum|fecha)(?![a-z]))|[a-z]Date", profile.name) is not None
    return profile.characters == 8 and re.search("dat|day|tag", profile.name.lower()) is not None


def _kind_by_name(profile: Column, *, is_whole: bool) -> tuple[str, str] | None:
    """Return kind and reason of plain numbers that are phone numbers or postcodes by their column's name."""
    if is_whole and re.fullmatch(_PHONE_NAME, profile.name) and profile.characters >= 7:
        return IDENTIFIER, "phone numbers, by the name of the column"
    if re.fullmatch(_CODE_NAME, profile.name.replace("_", " ")) and 3 <= profile.characters <= 10:
        return CATEGORY, "postcodes, by the name of the column"
    if not is_whole and re.search(r"(?i)(?:^|[^a-z])version$", profile.name):
        return CATEGORY, "versions, by the name of the column"
    return None


def _sum_where(condition: str) -> str:
    """Return SQL of the number of cells that meet a condition."""
    return f"coalesce(sum(n) FILTER ({condition}), 0)::BIGINT"


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))


def _unit_pattern(unit: str) -> str:
    """Return a regular expression for an optional unit, of words also in capitals and as a plural."""
    if unit == FLAGGED:
        return rf"[\[(]?(?:{'|'.join(FLAGS)})?[\])]?"
    if not re.fullmatch(r"[^\W\d_]{2,}", unit):
        return f"(?:{re.escape(unit)})?" if unit else ""
    first = unit[0] if unit[0] in "mM" else f"(?i:{unit[0]})"  # mW is not MW
    return f"(?:{first}(?i:{unit[1:]})(?:s|es|e|n|en)?)?"


def _unit_of(shapes: Mapping[str, int]) -> tuple[str, dict[str, int], list[str]]:
    """Return the unit of a column's numbers, the counts of cells without a number, and conflicting units."""
    spelled: dict[str, int] = {}
    units: dict[str, int] = {}  # star for star, Stars
    others: dict[str, int] = {}
    num_bare = 0
    for text, count in shapes.items():
        if _NUMBER_HERE not in text:
            others[text] = count
            continue
        text = re.sub(_TAIL + "$", "", text)
        has_gap = text.partition(_NUMBER_HERE)[0].endswith((" ", "\u00a0"))
        before, mark, after = (part.strip(f"-+−–(){AROUND_CELLS}") for part in text.partition(_NUMBER_HERE))
        unit = f"{before}{mark}{after}" if before and after else before + after
        # `L 129` is a flag, `L129` a code.
        is_flag = (before in FLAGS and has_gap) or after.strip("[]") in FLAGS
        unit = unit.strip("[]") if is_flag else unit
        is_name = re.search(r"[^\W\d_]", before) and not (is_flag or _CURRENCIES.fullmatch(before))
        if unit == "":
            num_bare += count
        elif not is_name and not re.search(r"(?<![^\W\d_])\d", unit) and len(unit) <= 16:
            spelled[unit] = spelled.get(unit, 0) + count
    for unit, count in sorted(spelled.items(), key=lambda each: (len(each[0]), -each[1], each[0].swapcase())):
        same = next((each for each in units if re.fullmatch(_unit_pattern(each), unit)), unit)
        units[same] = units.get(same, 0) + count
    if units and units.keys() <= set(FLAGS) and num_bare > (sum(units.values()) if len(units) == 1 else 0):
        return FLAGGED, others, []
    unit = max(units, key=lambda name: units[name], default="")
    num_like = num_bare + sum(units.values())
    is_usual = (
        bool(units) and units[unit] >= 0.2 * num_like and num_bare + units[unit] > MIXED_FROM * num_like
    )
    is_different = not is_usual and len(units) > 1 and units[unit] >= 0.1 * sum(shapes.values())
    return (
        unit if is_usual else "",
        others,
        list(units) if is_different and num_like > 0.8 * sum(shapes.values()) else [],
    )


def _without_magnitudes(shapes: Mapping[str, int]) -> dict[str, int]:
    """Return the shapes of cells without suffixes such as k or M; empty unless there are several shapes."""
    units: set[str] = set()
    remaining: Counter[str] = Counter()
    for text, count in shapes.items():
        match = re.fullmatch(rf"(.*{_NUMBER_HERE}\s*)({'|'.join(map(re.escape, MAGNITUDES))})(\W*)", text)
        unit = "" if match else text.partition(_NUMBER_HERE)[2].strip()
        if re.match(r"[^\W\d_]", unit) and unit not in EUROS and not _CURRENCIES.fullmatch(unit):
            return {}  # M and F, or M and W, are no magnitudes
        units |= {match[2] if match else ""} if _NUMBER_HERE in text else set()
        remaining[match[1].strip() + match[3] if match else text] += count
    is_credit = units <= {"Cr", ""}  # Cr is crore only beside other scales
    return dict(remaining) if len({MAGNITUDES.get(each, 1.0) for each in units}) > 1 and not is_credit else {}


def _is_ordinal(others: Mapping[str, int]) -> bool:
    """Return True for words that are values and not missing, such as 'more' in 1, 2, 3, more."""
    return any(
        re.search(r"more|less|over|under|mehr|weniger|\binf(?:\b|é)|yes|no\b|true|false", text)
        for text in others
    )


def _group(cell: str, pattern: str, group: int) -> str:
    """Return SQL of a part of a cell as a number."""
    return f"TRY_CAST(regexp_extract({cell}, {literal(pattern)}, {group}) AS DOUBLE)"


def _in_units(cell: str, form: str) -> str:
    """Return SQL of a cell with a unit after each number of a sum: of 1h30, 10+ years, 2 days 03:04:05."""
    if form in _SUMS:
        cell = f"regexp_replace({cell}, {literal(_LIMIT + '|[+]')}, '', 'g')"
    if form != MINUTES:
        return cell
    cell = f"regexp_replace({cell}, '^P(?:([0-9]+D)T?|T)', '\\1')"
    short = f"regexp_replace({cell}, '(h[a-z]*\\.? ?[0-9]{{1,2}})$', '\\1m', 'i')"
    return f"regexp_replace({short}, '(?i)(days?,? )([0-9]+):([0-9]+):([0-9.]+)$', '\\1\\2h\\3m\\4s')"


def _has_form(cell: str, form: str) -> str:
    """Return SQL that is true for a cell of a form that is rewritten."""
    matches = f"regexp_full_match({_in_units(cell, form)}, {literal(_FORM_PATTERNS[form])})"
    return f"({matches} AND regexp_matches({cell}, '[0-9]'))"


def _rewritten(cell: str, form: str) -> str:
    """Return SQL of a cell in which one form of numbers is rewritten as plain numbers."""
    if form == WIDE:
        return f"translate({cell}, {literal(_WIDE)}, {literal(_NARROW)})"
    if form == UNCERTAIN:
        return f"regexp_replace({cell}, {literal(_UNCERTAINTY)}, '')"
    is_such = _has_form(cell, form)
    if form == LIMITED:
        bare = f"regexp_replace({cell}, {literal(f'{_LIMIT}|{_MORE}')}, '', 'g')"
        return f"CASE WHEN {is_such} THEN {bare} ELSE {cell} END"
    if form == SERIAL:
        date = f"CAST(DATE '1899-12-30' + TRY_CAST({cell} AS INTEGER) AS VARCHAR)"
        return f"CASE WHEN {is_such} THEN {date} ELSE {cell} END"
    if form == POWER:
        plain = f"regexp_replace({cell}, '10([⁻⁰¹²³⁴-⁹])', '10^\\1')"
        plain = f"translate({plain}, '−{''.join(map(chr, _LOWERED))}', '--0123456789')"
        number = f"regexp_extract({plain}, '^[-+]?[0-9][0-9.,]*')"
        rest = f"substr({plain}, length({number}) + 1)"
        raised = f"translate({rest}, '-0123456789', '{'-0123456789'.translate(_RAISED)}')"
        power = f"'e' || regexp_extract({rest}, {literal(_TIMES)}, 1)"
        unit = f"CASE WHEN regexp_full_match({rest}, {literal(_TIMES)}) THEN {power} ELSE {raised} END"
        return f"CASE WHEN {is_such} THEN {number} || {unit} ELSE {cell} END"
    if form in _SUMS:
        spelled = f"replace({_in_units(cell, form)}, ',', '.')"
        parts = [
            f"{factor}.0 * coalesce({_group(spelled, f'^{_FORM_PATTERNS[form]}$', group)}, 0)"
            for group, (_, factor) in enumerate(_SUMS[form], start=1)
        ]
        return f"CASE WHEN {is_such} THEN CAST({' + '.join(parts)} AS VARCHAR) ELSE {cell} END"
    first, second, third = (_group(cell, f"^(?:{_FORM_PATTERNS[form]})()$", group) for group in (1, 2, 3))
    angle = f"{first} + coalesce({second}, 0) / 60 + coalesce({third}, 0) / 3600"
    number = {
        FEET: f"12 * {first} + coalesce({second}, 0)",
        FRACTION: f"coalesce({first}, 0) + {second} / {third}",
        ORDINAL: first,
        DEGREES: f"CASE WHEN regexp_matches({cell}, '[SW]$') THEN -1 ELSE 1 END * ({angle})",
    }[form]
    return f"CASE WHEN {is_such} THEN CAST({number} AS VARCHAR) ELSE {cell} END"


def _spelled(cell: str, form: str) -> str:
    """Return SQL of a cell as `strptime` reads it: without time and weekday, with English months."""
    if "%b" not in form:
        date = f"regexp_replace({cell}, '([T ,]+(?:à |um )?{_TIME}.*|T[0-9]{{4,6}}Z?)$', '')"
        if form == "%Y%m%d" or form[-1] == "일":
            return f"replace({date}, ' ', '')"
        # Mo, 05.03.2020; 5. 3. 2020; 2020. 03. 05.
        return (
            f"trim(regexp_replace(regexp_replace({date}, '^\\pL+[.,]* +', ''), '([./-]) +', '\\1', 'g'), '.')"
        )
    # Tue Nov 05 13:45:30 +0000 2019: the year is last.
    date = f"regexp_replace({cell}, ' {_TIME}[0-9:.]*( [+-][0-9]{{4}}| [A-Z]{{3,4}})?( [0-9]{{4}})$', '\\2')"
    date = f"regexp_replace({date}, '[T ,]+(à |um )?{_TIME}.*$', '')"
    date = f"regexp_replace({date}, '^{_WEEKDAY}', '', 'i')"
    word, start = (
        f"regexp_extract({date}, '(?i)(?:^|[^\\pL])(({_MONTH})\\pL*)', {group})" for group in (1, 2)
    )
    names = literal(" ".join(f"{each}:{month}" for month, some in MONTHS.items() for each in some.split("|")))
    month = f"substr({names}, strpos({names}, lower({start}) || ':') + length({start}) + 1, 3)"
    date = f"replace({date}, {word}, ' ' || {month} || ' ')"  # 31DEC2020 has no spaces
    # Ordinals and prepositions: 1er, 5th, 5 de marzo.
    date = f"regexp_replace({date}, '([0-9])(?:st|nd|rd|th|er|º|°)', '\\1', 'i')"
    return f"trim(regexp_replace({date}, '(?: de | del |[-., /''’])+', ' ', 'g'))"


SPELLINGS = list(dict.fromkeys(_spelled("v", form) for form in DATE_FORMATS))


def _parsed(text: str, form: str) -> str:
    """Return SQL of a text as a date; NULL if it has another format."""
    parsed = f"TRY_CAST(TRY_STRPTIME({text}, {literal(form)}) AS DATE)"
    # %Y would also accept a year of two digits.
    return f"CASE WHEN regexp_matches({text}, '[12][0-9]{{3}}') THEN {parsed} END" if "%Y" in form else parsed


def _doubt_of_order(forms: Sequence[str]) -> str:
    """Return why the order of day and month is uncertain, or an empty string, by the formats that fit."""
    others = {
        form.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m") for form in forms if "%m" in form
    }
    is_both = any("%d" in form and form in others for form in forms)
    return DAY_OR_MONTH if is_both else ""


def _has_order(form: str, chosen: str) -> bool:
    """Return False for a format in which day and month have another order than the user has chosen."""
    return chosen not in ORDERS or form[:2] not in ORDERS.values() or form.startswith(ORDERS[chosen])


def _resolved(table: Table, columns: Sequence[Column]) -> list[Column]:
    """Interpret ambiguous separators and dates as in the other columns of the file."""
    by_index = {each.index: each for each in columns}
    has_commas = any(each.confidence == "high" and each.notation.decimal == "," for each in columns)
    orders = {each.date_format[:2] for each in columns if each.kind == DATE and each.confidence == "high"}
    if "%d" in orders or (has_commas and "%m" not in orders):
        for each in columns:
            if each.kind == DATE and each.confidence == "medium" and each.date_format.startswith("%m"):
                by_index[each.index] = replace(each, date_format=each.date_format.replace("%m/%d", "%d/%m"))
    if not has_commas:
        return list(by_index.values())
    reason = "other columns have decimal commas"
    numbers = {each.index: each for each in columns if each.kind == NUMBER and not each.is_chosen}
    for each in numbers.values():
        if each.confidence == "medium" and each.notation.thousands == ",":
            notation = Notation(decimal=",", unit=each.notation.unit)
            by_index[each.index] = replace(each, notation=notation, reason=reason)
    by_unit: dict[str, list[Column]] = {}
    for each in numbers.values():
        if each.notation in (PLAIN, Notation(unit=each.notation.unit)):
            by_unit.setdefault(each.notation.unit, []).append(each)
    for unit, group in by_unit.items():
        grouped = Notation(decimal=",", thousands=".", unit=unit)
        fits = f"regexp_full_match(v, {literal(grouped.pattern)})"
        sql = f"SELECT col FROM CELLS WHERE contains(v, '.') GROUP BY col HAVING bool_and({fits})"
        for (index,) in query_cells(table, group, sql):
            by_index[index] = replace(numbers[index], notation=grouped, confidence="medium", reason=reason)
    return [by_index[each.index] for each in columns]


def _with_numbers(table: Table, columns: Sequence[Column]) -> list[Column]:
    """Add statistics of numeric columns; find constant columns."""
    by_index = {each.index: each for each in columns}
    by_notation: dict[Notation, list[Column]] = {}
    for each in columns:
        is_same = each.num_distinct == 1 and not each.num_missing and not each.is_chosen
        if each.kind in (CATEGORY, FILE_NAME) and is_same:
            by_index[each.index] = replace(each, kind=CONSTANT, reason="all cells are the same")
        if each.kind in (NUMBER, MIXED):
            by_notation.setdefault(each.notation, []).append(each)
    quantile = "approx_quantile" if table.num_rows > 2_000_000 else "quantile_cont"
    expressions = (
        f"count(v), count(u), count(m) - count(u), min(u), max(u), bool_and(u = floor(u)), "
        f"{quantile}(u, [0.25, 0.5, 0.75]), count(DISTINCT u)"
    )
    for notation, numbers in by_notation.items():
        # The example is the first cell that has a separator or another unusual character.
        unusual = "row + CASE WHEN regexp_matches(v, '[0-9][^0-9-]+[0-9]') THEN 0 ELSE 1e15 END"
        example = (
            f", arg_min(v, {unusual}) FILTER (m IS NOT NULL), arg_min(m, {unusual}) FILTER (m IS NOT NULL)"
        )
        read = f"(SELECT *, {notation.sql('v')} AS m FROM CELLS)"
        usable = f"(SELECT *, CASE WHEN abs(m) <= {LARGEST_NUMBER!r} THEN m END AS u FROM {read})"
        sql = f"SELECT col, {expressions}{'' if notation.is_plain else example} FROM {usable} GROUP BY col"
        for index, present, num, large, low, high, whole, quartiles, distinct, *examples in query_cells(
            table, numbers, sql
        ):
            each = by_index[index]
            is_same = each.num_distinct == 1 and num == each.num_rows and not each.is_chosen
            by_index[index] = replace(
                each,
                kind=CONSTANT if is_same else NUMBER if num + large == present else MIXED,
                reason="all cells are the same" if is_same else each.reason,
                num_present=present,
                num_numbers=num,
                num_too_large=large,
                lowest=low or 0.0,
                highest=high or 0.0,
                all_whole=bool(whole) and not large,
                quartiles=tuple(quartiles or (0.0, 0.0, 0.0)),
                num_distinct=distinct + bool(large),
                example=(str(examples[0]), f"{examples[1]:.12g}")
                if examples and examples[0] is not None
                else ("", ""),
            )
    return [by_index[each.index] for each in columns]


def _find_identifiers(table: Table, columns: Sequence[Column], has_others: bool) -> list[Column]:
    """Recognise row indexes and identifiers, from which a model cannot learn anything about other rows."""
    by_index: dict[int, Column] = {}
    for each in columns:
        is_first = all(index in by_index and by_index[index].kind == INDEX for index in range(each.index))
        is_nameless = each.name == "column 1" and table.names[1:2] != ["column 2"]
        is_saved = is_nameless or re.fullmatch(_SAVED_INDEX, each.name)
        may_repeat = is_saved and is_first and each.num_present <= MOST_JOINED * each.num_distinct
        is_able = not each.is_chosen and each.num_present >= MIN_FOR_IDENTIFIER
        if is_able and (each.all_different or may_repeat):
            by_index[each.index] = _by_name(each, each.index in table.index_columns, is_first, has_others)
    for each in columns:
        if each.is_chosen or not each.num_distinct < each.num_present < MOST_PER_ID * each.num_distinct:
            continue
        is_whole = each.kind == NUMBER and each.all_whole and each.notation.is_plain
        is_id = is_whole and each.num_distinct > 2 and re.search(r"(^|[_\-. ])id$|Id$|ID$", each.name)
        has_zeros = each.kind == CATEGORY and each.num_numbers == each.num_present
        is_code = (is_whole or has_zeros) and _has_many_codes(each) and _is_code_name(each.name)
        if is_id or is_code:
            reason = "called an identifier; rows with the same one may be alike"
            by_index[each.index] = replace(each, kind=IDENTIFIER, reason=reason, confidence="medium")
    counting = {
        index: each
        for index, each in by_index.items()
        if each.kind == NUMBER
        and each.all_whole
        and each.notation.is_plain
        and each.name.lower() not in ORDERED_NAMES
    }
    steps = "SELECT col, v - lag(v) OVER (PARTITION BY col ORDER BY row) AS d FROM CELLS"
    for index, minimum, maximum in query_cells(
        table,
        list(counting.values()),
        f"SELECT col, min(d), max(d) FROM ({steps}) GROUP BY col",
        as_numbers=True,
    ):
        if minimum == maximum != 0 and (minimum == 1 or (index == 0 and has_others)):
            reason = f"it counts up by {minimum:g} from row to row"
            by_index[index] = replace(counting[index], kind=INDEX, reason=reason, confidence="medium")
    return [by_index.get(each.index, each) for each in columns]


def _by_name(each: Column, is_declared: bool, is_first: bool, has_others: bool) -> Column:
    """Return a column as an index, if only indexes are before it, or an identifier, by its name or file."""
    if is_declared:
        return replace(each, kind=INDEX, reason="the file declares it as the index of its rows")
    if each.kind == CATEGORY and each.confidence != "low" and each.all_different:
        return replace(each, kind=IDENTIFIER, reason="all its values are different, like names of rows")
    if each.kind != NUMBER or not each.all_whole or not each.notation.is_plain:
        return each
    if (is_first and re.fullmatch(NAMELESS, each.name.lower())) or each.name.startswith("__index_level_"):
        return replace(each, kind=INDEX, reason="whole numbers in a first column without a name")
    is_row_number = each.lowest in (0, 1) and each.highest - each.lowest + 1 == each.num_rows
    if is_row_number and has_others and each.name.lower() not in ORDERED_NAMES:
        reason = "each whole number up to the number of rows, once"
        return replace(each, kind=INDEX, reason=reason, confidence="medium")
    if is_id_name(each.name):
        return replace(each, kind=IDENTIFIER, reason="whole numbers, all different, and called an identifier")
    return each


def _has_many_codes(each: Column) -> bool:
    """Return True for more values than a category has; a code of few values is one."""
    return each.num_distinct > min(MAX_ONE_HOT, max(MIN_FOR_IDENTIFIER, each.num_present / 5))


def _is_code_name(name: str) -> bool:
    """Return True for the code or number of one person or thing: Code client, order no., Kundennr."""
    words = re.sub(r"(?<=[^\W\dA-Z_])(?=[A-Z])", " ", name).replace("_", " ").lower()
    code_of = rf"(?:{_CODES})\W*(?:(?:de l|de|du|of|del)\b\W*)?(?:{_CODED})|(?:{_CODED})s?\W*(?:{_CODES})\.?"
    return re.fullmatch(code_of, words) is not None


def is_id_name(name: str) -> bool:
    """Return True for a name such as user_id, customerID, Code client or 编号."""
    parts = [part for part in re.split(r"[_\-. ]", name.lower()) if part] or [""]
    return (
        parts[-1] in ID_NAMES
        or parts[0] in ("id", "uuid", "n°")
        or name.endswith(("Id", "ID", "编号", "番号"))
        or re.fullmatch(r".{3,}(nummer|number|nr\.?)", name.lower()) is not None
        or _is_code_name(name)
    )
