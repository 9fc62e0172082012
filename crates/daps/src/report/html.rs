//! The pieces of a page: head, sections, figures with their pixels inside, tables.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::RgbImage;

use crate::{Result, canvas};

const STYLE: &str = include_str!("style.css");

/// A page in the making.
pub struct Page {
    html: String,
}

impl Page {
    /// With a title.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let (plain, title) = (escape(&title.replace('`', "")), rich(title));
        let html = format!(
            "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
             <title>daps: {plain}</title>\n<style>{STYLE}</style>\n<main><h1>{title}</h1>\n"
        );
        Self { html }
    }

    /// A paragraph of HTML.
    pub fn lead(&mut self, html: &str) {
        self.push(&format!("<p class=lead>{html}</p>"));
    }

    /// A box with what a reader should know first.
    pub fn warnings(&mut self, warnings: &[String]) {
        if !warnings.is_empty() {
            let items: String = warnings.iter().map(|w| format!("<li>{}</li>", rich(w))).collect();
            self.push(&format!("<ul class=warning>{items}</ul>"));
        }
    }

    /// A headed section of HTML.
    pub fn section(&mut self, title: &str, html: &str) {
        self.push(&format!("<section><h2>{title}</h2>{html}</section>"));
    }

    /// Something to unfold.
    pub fn details(&mut self, title: &str, html: &str) {
        self.push(&details(title, html));
    }

    /// The page.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.push(&format!("<p class=foot>daps {}</p></main></html>", env!("CARGO_PKG_VERSION")));
        self.html
    }

    /// More HTML.
    pub fn push(&mut self, html: &str) {
        let _ = writeln!(self.html, "{html}");
    }
}

/// Text that a page shows as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text for a page: what stands between backticks is code, and what stands between double asterisks is bold, as in Markdown.
#[must_use]
pub fn rich(text: &str) -> String {
    let mut html = String::new();
    // A mark that nothing closes stays as it is, so the parts between marks are taken in pairs.
    let mut rest = text;
    while let Some((before, inside, after)) = marked(rest, "`") {
        html += &bold(before);
        html += &format!("<code>{}</code>", escape(inside));
        rest = after;
    }
    html + &bold(rest)
}

fn bold(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some((before, inside, after)) = marked(rest, "**") {
        html += &format!("{}<b>{}</b>", escape(before), escape(inside));
        rest = after;
    }
    html + &escape(rest)
}

/// What is before, between and after the first two marks.
fn marked<'a>(text: &'a str, mark: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = text.split_once(mark)?;
    let (inside, after) = rest.split_once(mark)?;
    Some((before, inside, after))
}

/// A number with its error or its count for a table: lines break between the parts, and never within them.
#[must_use]
pub fn unbroken(html: &str) -> String {
    let (number, count) = html.split_once(" (").map_or((html, None), |(number, count)| (number, Some(count)));
    let fixed = |part: &str| part.replace(' ', "&nbsp;");
    match count {
        Some(count) if count.ends_with(')') => format!("{} ({}", fixed(number), fixed(count)),
        _ => html.replace(" ± ", "&nbsp;±&nbsp;"),
    }
}

/// Something to unfold; the title and what is inside are HTML.
#[must_use]
pub fn details(title: &str, html: &str) -> String {
    format!("<details><summary>{title}</summary>{html}</details>")
}

/// A picture with a caption; `class` says how large: small, large or wide.
pub fn figure(caption: &str, picture: &RgbImage, class: &str) -> Result<String> {
    let data = STANDARD.encode(canvas::png(picture)?);
    let (w, h) = (picture.width(), picture.height());
    let (words, caption) = (escape(&caption.replace('`', "")), rich(caption));
    Ok(format!(
        "<figure class={class}><img width={w} height={h} alt=\"{words}\" src=\"data:image/png;base64,{data}\">\
         <figcaption>{caption}</figcaption></figure>"
    ))
}

/// A table; cells are HTML, all but the first column numbers.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = head.iter().map(|h| format!("<th>{h}</th>")).collect();
    let row = |cells: &Vec<String>| {
        format!("<tr>{}</tr>", cells.iter().map(|c| format!("<td>{c}</td>")).collect::<String>())
    };
    format!("<table><tr>{heads}</tr>{}</table>", rows.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_code_and_bold_and_nothing_else_changes() {
        assert_eq!(
            rich("run `daps weights get <x>`, **now**"),
            "run <code>daps weights get &lt;x&gt;</code>, <b>now</b>"
        );
        assert_eq!(rich("`a**b**`"), "<code>a**b**</code>");
        assert_eq!(rich("2 ** 3, a ` b"), "2 ** 3, a ` b");
        let page = Page::new("`a` < b").finish();
        assert!(
            page.contains("<title>daps: a &lt; b</title>") && page.contains("<h1><code>a</code> &lt; b</h1>")
        );
    }

    #[test]
    fn numbers_break_before_their_count_only() {
        assert_eq!(unbroken("27.10 ± 0.30"), "27.10&nbsp;±&nbsp;0.30");
        assert_eq!(unbroken("27.10 ± 0.30 (2 of 3)"), "27.10&nbsp;±&nbsp;0.30 (2&nbsp;of&nbsp;3)");
        assert_eq!(unbroken("34 of 73, decided 28 of 50"), "34 of 73, decided 28 of 50");
    }
}
