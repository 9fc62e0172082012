//! Where in a text a parser stumbled, for people.

use std::ops::Range;

/// "line 3: ", or nothing where the parser does not say.
#[must_use]
pub fn place(text: &str, span: Option<Range<usize>>) -> String {
    let Some(span) = span else { return String::new() };
    let before = &text.as_bytes()[..span.start.min(text.len())];
    format!("line {}: ", before.iter().filter(|b| **b == b'\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let text = "a\nä\nb";
        for (at, line) in [(0, 1), (1, 1), (2, 2), (3, 2), (5, 3), (99, 3)] {
            assert_eq!(place(text, Some(at..at + 1)), format!("line {line}: "), "{at}");
        }
        assert_eq!(place(text, None), "");
    }
}
