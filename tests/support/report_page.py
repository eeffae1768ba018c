"""The page of a run's result files, and what a reader finds in it."""

import html.parser
import re
from pathlib import Path

import report_results

from tasks.job import Job
from tasks.reporting import page
from tasks.reporting.page import PageParams, draw_page

TEMPLATES = Path(page.__file__).with_name("templates")


def draw(root, output, profile="small", **params):
    output.mkdir(parents=True)
    inputs = {"templates": TEMPLATES, **report_results.find(root)}
    (metrics,) = draw_page([Job(PageParams(profile, **params), inputs, output)])
    return (output / "index.html").read_text(), metrics.values


def in_a_line(text):
    """As a browser shows it: spaces and ends of lines are one space, but for spaces where no line ends."""
    return re.sub(r"[ \n]+", " ", text).strip()


class Reader(html.parser.HTMLParser):
    """Tables as lists of rows, headings, pictures, and whatever a browser would fetch."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.headings, self.pictures, self.addresses = [], [], [], []
        self.videos = []
        self.text, self.answers, self._cell, self._answer = "", [], None, False
        self.feed(text)
        self.text = in_a_line(self.text)
        self.answers = [in_a_line(answer) for answer in self.answers]

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.addresses += [given[name] for name in ("src", "href", "srcset", "data") if name in given]
        if tag == "img":
            self.pictures.append(given)
        elif tag == "video":
            self.videos.append(given)
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = ""
        elif given.get("class") == "answer":
            self._answer = True
            self.answers.append("")

    def handle_data(self, data):
        self.text += data
        if self._cell is not None:
            self._cell += data
        if self._answer:
            self.answers[-1] += data

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self.tables[-1][-1].append(self._cell)
            self._cell = None
        elif tag == "p":
            self._answer = False

    def table(self, *head):
        """The rows of the table whose first columns are `head`."""
        (found,) = (rows for rows in self.tables if rows[0][: len(head)] == list(head))
        return found[1:]
