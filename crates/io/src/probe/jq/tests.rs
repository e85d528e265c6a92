use super::*;

fn said(code: &str, input: &str) -> Said {
    let program = Program::compile(code).unwrap();
    let input: Val = serde_json::from_str(input).unwrap();
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || program.run(input, 100, &AtomicBool::new(false)))
        .unwrap()
        .join()
        .unwrap()
}

#[test]
fn programs_mean_what_they_mean_in_jq() {
    let input = r#"{"a":[1,2,3],"b":{"c":"x"},"n":5,"s":"ab","d":"2.5"}"#;
    for code in [
        ".a == [1,2,3]",
        "[.a[] + (10, 20)] == [11, 21, 12, 22, 13, 23]",
        "[(1, 2) + (10, 20)] == [11, 21, 12, 22]",
        "[(1, 2) * (10, 20) - 1] == [9, 19, 19, 39]",
        ".n += 2 | .n == 7",
        ".a[] *= 2 | .a == [2, 4, 6]",
        ".a -= [2] | .a == [1, 3]",
        "5 as $x | .n += $x | .n == 10",
        "[range(5)] == [0, 1, 2, 3, 4]",
        "[range(2; 5)] == [2, 3, 4]",
        "[range(0; 10; 4)] == [0, 4, 8]",
        "[range(3; 0; -1)] == [3, 2, 1]",
        "[range(0; 1; 0.5)] == [0, 0.5]",
        "[limit(3; repeat(1))] == [1, 1, 1]",
        "reduce .a[] as $x (0; . + $x) == 6",
        "[foreach .a[] as $x (0; . + $x; [$x, .])] == [[1, 1], [2, 3], [3, 6]]",
        "def f($x): $x * 2; [.a[] | f(.)] == [2, 4, 6]",
        "\"n is \\(.n + 1)\" == \"n is 6\"",
        "\"ab\" * 3 == \"ababab\"",
        "{a: {b: 1}} * {a: {c: 2}} == {a: {b: 1, c: 2}}",
        "{(.s): .n, s} == {ab: 5, s: \"ab\"}",
        "(.s | ascii_upcase) == \"AB\" and (.d | tonumber) == 2.5",
        ". as {a: [$x], b: {c: $y}} | $x == 1 and $y == \"x\"",
        "[.a | to_entries[] | select(.value > 1) | .key] == [1, 2]",
        "try error(\"x\") catch . == \"x\"",
        "[.a[] | if . == 1 then \"one\" elif . == 2 then \"two\" else \"more\" end] == [\"one\", \"two\", \"more\"]",
        ".x // 7 == 7",
        "[.[\"a\"][1:][]] == [2, 3]",
        "path(.a[0]) == [\"a\", 0]",
        "[.b | path(..)] == [[], [\"c\"]]",
        "[.a | ..] == [[1, 2, 3], 1, 2, 3]",
        "(.a | walk(if type == \"number\" then . + 1 else . end)) == [2, 3, 4]",
        "(.b | .. |= .) == {c: \"x\"}",
        ".a | tojson == \"[1,2,3]\"",
        "(.b | @json) == \"{\\\"c\\\":\\\"x\\\"}\"",
        "(\"[1, 2]\" | fromjson) == [1, 2]",
        "(label $out | 1, break $out, 2) == 1",
        "-(.n) == -5",
        "([.a[] | tostring] | join(\"-\")) == \"1-2-3\"",
        "import_free",
    ] {
        if code == "import_free" {
            assert!(
                Program::compile("import \"x\" as x; true").is_err_and(|e| e.contains("cannot be imported"))
            );
            continue;
        }
        assert_eq!(said(code, input), Said::True, "{code}");
    }
}

#[test]
fn what_never_ends_is_stopped() {
    for code in [
        "repeat(.) | select(false)",
        "[repeat(.)]",
        "[range(1e18)]",
        "[range(0; 1; 0)]",
        "[range(1e18) | select(false)]",
        "def f: f; f",
        "def f: def g: f; g; f",
        "until(false; .)",
        "[recurse(.)]",
        "last(range(1e18))",
        "[limit(1e18; repeat(1))]",
        "reduce range(60) as $i (\"x\"; . + .) | true",
        "reduce range(60) as $i (10; . * .) | true",
        "reduce range(60) as $i ([1]; . + .) | true",
        "\"x\" * 1e12 | true",
        "\"x\" * 100000000000000000000 | true",
        "\"x\" as $x | . = \"y\" | . *= 1e12 | true",
        "[range(100000)] - [range(100000)] | true",
        "reduce range(60) as $i (1; [., .]) | tojson | true",
        "reduce range(60) as $i (1; [., .]) | tostring | true",
        "reduce range(60) as $i (1; {a: ., b: .}) | \"x\\(.)\" | true",
        "reduce range(60) as $i (1; [., .]) | @json | true",
        "reduce range(60) as $i (1; [., .]) | [..] | true",
        "reduce range(60) as $i (1; [., .]) | . == .",
        "reduce range(60) as $i (1; [., .]) | [path(..)] | true",
        "reduce range(60) as $i (1; [., .]) | walk(.) | true",
        "[[range(1000)], [range(1000)], [range(1000)]] | [combinations]",
    ] {
        let said = said(code, "1");
        assert!(matches!(said, Said::Stopped(Stop::Steps(_))), "{code} gave {said:?}");
    }
}

#[test]
fn depth_overflows_no_stack() {
    for code in [
        "def f: 1 + f; f",
        "def f: [f]; f",
        "def f(x): f(x | x); f(.)",
        "reduce range(1000000000) as $i (null; [.])",
        "reduce range(1000000000) as $i (null; {a: .})",
        "reduce range(1000000000) as $i ([null]; .[0] = .)",
        "def f: {a: f}; f",
    ] {
        let said = said(code, "1");
        assert!(matches!(said, Said::Stopped(_)), "{code} gave {said:?}");
    }
    // Deep, but not too deep: built, compared and let go.
    let code = "reduce range(20000) as $i (null; [.]) | type == \"array\"";
    assert_eq!(said(code, "1"), Said::True);
}

#[test]
fn an_abandoned_program_is_stopped() {
    let program = Program::compile("[range(1e18)]").unwrap();
    assert_eq!(program.run(Val::Null, 100, &AtomicBool::new(true)), Said::Stopped(Stop::Abandoned));
}
