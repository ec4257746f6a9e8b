// Runs cells of Java in a JShell, whose code runs in a virtual machine of its own. The driver's java_kernel.py starts this
// program with `java JavaKernel.java` and talks to it in lines; texts in them are base64.
//
//     from the driver:  run CODE | interrupt
//     to the driver:    ready | stdout TEXT | stderr TEXT | result TEXT | error NAME VALUE TRACEBACK | done
//
// Works with Java 11 and later.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.ExpressionSnippet;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.VarSnippet;

public class JavaKernel {
    /** What the `jshell` program imports at its start. */
    private static final String[] IMPORTS = {
        "java.io", "java.math", "java.net", "java.nio.file", "java.util", "java.util.concurrent",
        "java.util.function", "java.util.prefs", "java.util.regex", "java.util.stream",
    };
    /** A stop before the code runs has no effect, so it is repeated until the cell ends. */
    private static final int STOP_MILLISECONDS = 50;
    /** A stop can hit the other machine while it writes to this one, which then waits for the rest. And a cell may catch it. */
    private static final int GIVE_UP_SECONDS = 10;

    private final PrintStream driver = System.out;
    private final BlockingQueue<String> cells = new LinkedBlockingQueue<>();
    private final JShell shell;
    private volatile boolean isRunning;
    private volatile boolean isInterrupted;

    public static void main(String[] arguments) throws Exception {
        new JavaKernel().serve();
    }

    private JavaKernel() {
        shell = JShell.builder()
            .in(new ByteArrayInputStream(new byte[0]))
            .out(new PrintStream(new Stream("stdout"), true))
            .err(new PrintStream(new Stream("stderr"), true))
            .remoteVMOptions("-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-Dstderr.encoding=UTF-8")
            .build();
        // `System.exit` in a cell. The driver reports it, and starts another kernel for the next cell.
        shell.onShutdown(closed -> System.exit(1));
        String classPath = System.getenv("CLASSPATH");
        if (classPath != null && !classPath.isEmpty()) {
            shell.addToClasspath(classPath);
        }
        for (String name : IMPORTS) {
            shell.eval("import " + name + ".*;");
        }
    }

    private void serve() throws Exception {
        Thread reader = new Thread(this::readCommands, "commands");
        reader.setDaemon(true);
        reader.start();
        send("ready");
        while (true) {
            String code = cells.take();
            try {
                run(code);
            } catch (IllegalStateException closed) {
                System.exit(1);
            }
            isRunning = false;
            send("done");
        }
    }

    private void readCommands() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            String line;
            while ((line = lines.readLine()) != null) {
                if (line.equals("interrupt")) {
                    interrupt();
                } else {
                    isInterrupted = false;
                    isRunning = true;
                    cells.add(decode(line.substring("run ".length())));
                }
            }
        } catch (IOException gone) {
            // As at the end of the stream.
        }
        Runtime.getRuntime().halt(0);
    }

    private void interrupt() {
        isInterrupted = isRunning;
        Thread stopper = new Thread(() -> {
            long start = System.nanoTime();
            while (isRunning && isInterrupted) {
                if (System.nanoTime() - start > TimeUnit.SECONDS.toNanos(GIVE_UP_SECONDS)) {
                    // The driver reports it, and starts another kernel for the next cell.
                    Runtime.getRuntime().halt(1);
                }
                try {
                    shell.stop();
                } catch (RuntimeException failed) {
                    // The debugger of the other machine met a thread that changed meanwhile. The next try finds it as it is.
                    failed.printStackTrace();
                }
                try {
                    Thread.sleep(STOP_MILLISECONDS);
                } catch (InterruptedException impossible) {
                    return;
                }
            }
        }, "stopper");
        stopper.setDaemon(true);
        stopper.start();
    }

    /** Runs the snippets of a cell until one fails. The value of the last one is the result. */
    private void run(String code) {
        String rest = code;
        SnippetEvent last = null;
        while (!rest.isBlank()) {
            CompletionInfo next = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            if (next.completeness() == SourceCodeAnalysis.Completeness.EMPTY) {
                break;
            }
            // What is incomplete is evaluated too: then the compiler says what is missing.
            boolean isWhole = next.completeness().isComplete();
            String source = isWhole ? next.source() : rest;
            rest = isWhole ? next.remaining() : "";
            for (SnippetEvent event : shell.eval(source)) {
                // Other events are about earlier snippets that this one changes.
                if (event.causeSnippet() == null) {
                    last = event;
                    if (isInterrupted) {
                        error("KeyboardInterrupt", "the cell was interrupted", "KeyboardInterrupt");
                        return;
                    }
                    if (hasFailed(event)) {
                        return;
                    }
                }
            }
        }
        if (last != null) {
            showValue(last);
        }
    }

    /** Reports the error of a snippet, if it has one. */
    private boolean hasFailed(SnippetEvent event) {
        if (event.status() == Snippet.Status.REJECTED) {
            rejected(event.snippet());
            return true;
        }
        if (event.exception() != null) {
            thrown(event.exception());
            return true;
        }
        if (event.status() != Snippet.Status.VALID && event.snippet() instanceof DeclarationSnippet) {
            warnUnresolved((DeclarationSnippet) event.snippet());
        }
        return false;
    }

    private void rejected(Snippet snippet) {
        List<Diag> problems = shell.diagnostics(snippet).filter(Diag::isError).collect(Collectors.toList());
        String value = problems.isEmpty() ? "the code is not valid" : firstLine(problems.get(0).getMessage(Locale.ENGLISH));
        String traceback = problems.stream().map(one -> describe(snippet.source(), one)).collect(Collectors.joining("\n"));
        error("CompilationError", value, traceback.isEmpty() ? value : traceback);
    }

    /** A problem with its line of code, and a mark below the place. */
    private static String describe(String source, Diag problem) {
        int place = (int) Math.max(0, Math.min(problem.getPosition(), source.length()));
        int start = source.lastIndexOf('\n', place - 1) + 1;
        int end = source.indexOf('\n', place);
        String line = source.substring(start, end < 0 ? source.length() : Math.max(start, end));
        long number = source.substring(0, start).chars().filter(letter -> letter == '\n').count() + 1;
        String head = "line " + number + ": error: " + problem.getMessage(Locale.ENGLISH);
        return head + "\n" + line + "\n" + " ".repeat(place - start) + "^";
    }

    private void thrown(JShellException exception) {
        if (exception instanceof UnresolvedReferenceException) {
            DeclarationSnippet snippet = ((UnresolvedReferenceException) exception).getSnippet();
            String value = "a definition uses names that are not declared: " + unresolved(snippet);
            error("UnresolvedReference", value, value + "\n" + snippet.source());
            return;
        }
        String name = nameOf(exception);
        String message = exception.getMessage();
        error(name, message == null ? "" : message, trace(exception, ""));
    }

    private static String trace(Throwable exception, String before) {
        String message = exception.getMessage();
        String head = before + nameOf(exception) + (message == null ? "" : ": " + message);
        String frames = Arrays.stream(exception.getStackTrace()).map(JavaKernel::frame).collect(Collectors.joining());
        Throwable cause = exception.getCause();
        return head + frames + (cause == null || cause == exception ? "" : "\n" + trace(cause, "Caused by: "));
    }

    private static String nameOf(Throwable exception) {
        return exception instanceof EvalException
            ? ((EvalException) exception).getExceptionClassName()
            : exception.getClass().getName();
    }

    /** JShell gives code of a snippet the file `#N`, and its own classes names that say nothing. */
    private static String frame(StackTraceElement frame) {
        String file = frame.getFileName();
        if (file == null || !file.startsWith("#")) {
            return "\n\tat " + frame;
        }
        String method = frame.getMethodName().isEmpty() ? "" : frame.getMethodName() + " ";
        return "\n\tat " + method + "(" + file + ":" + frame.getLineNumber() + ")";
    }

    private void warnUnresolved(DeclarationSnippet snippet) {
        String text = snippet.name() + " cannot be used until these are declared: " + unresolved(snippet) + "\n";
        send("stderr", utf8(text));
    }

    private String unresolved(DeclarationSnippet snippet) {
        return shell.unresolvedDependencies(snippet).collect(Collectors.joining(", "));
    }

    /** Shows the value of an expression. A declaration has a value too, but it is no result. */
    private void showValue(SnippetEvent event) {
        boolean isExpression = event.snippet().kind() == Snippet.Kind.EXPRESSION
            || event.snippet().subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        String value = event.value();
        // A call of a void method has an empty value; the text "" has quotes.
        if (isExpression && value != null && !value.isEmpty()) {
            send("result", utf8(plain(event.snippet(), value)));
        }
    }

    /** JShell shows texts as literals. They are shown as they are, as by `toString`. */
    private String plain(Snippet snippet, String value) {
        boolean isVariable = snippet instanceof VarSnippet;
        if (!isVariable && !(snippet instanceof ExpressionSnippet)) {
            return value;
        }
        String type = isVariable ? ((VarSnippet) snippet).typeName() : ((ExpressionSnippet) snippet).typeName();
        boolean isText = type.equals("String") || type.equals("java.lang.String");
        if (!isText || value.length() < 2 || !value.startsWith("\"")) {
            return value;
        }
        String name = isVariable ? ((VarSnippet) snippet).name() : ((ExpressionSnippet) snippet).name();
        boolean hasEscapes = value.indexOf('\\') >= 0;
        return hasEscapes && name != null ? unescaped(name) : value.substring(1, value.length() - 1);
    }

    /** The text of a variable. Versions of Java differ in what they escape, so it comes in an encoding without escapes. */
    private String unescaped(String variable) {
        String utf8 = variable + ".getBytes(java.nio.charset.StandardCharsets.UTF_8)";
        SnippetEvent event = shell.eval("java.util.Base64.getEncoder().encodeToString(" + utf8 + ")").get(0);
        shell.drop(event.snippet());
        return decode(event.value().replace("\"", ""));
    }

    private static String firstLine(String text) {
        return text.lines().findFirst().orElse("");
    }

    private void error(String name, String value, String traceback) {
        send("error", utf8(name), utf8(value), utf8(traceback));
    }

    private void send(String kind, byte[]... texts) {
        StringBuilder line = new StringBuilder(kind);
        for (byte[] text : texts) {
            line.append(' ').append(Base64.getEncoder().encodeToString(text));
        }
        byte[] bytes = line.append('\n').toString().getBytes(StandardCharsets.US_ASCII);
        synchronized (driver) {
            driver.write(bytes, 0, bytes.length);
            driver.flush();
        }
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    /** Sends what is written to it to the driver. */
    private final class Stream extends OutputStream {
        private final String kind;

        Stream(String kind) {
            this.kind = kind;
        }

        @Override
        public void write(int one) {
            send(kind, new byte[] {(byte) one});
        }

        @Override
        public void write(byte[] bytes, int start, int length) {
            if (length > 0) {
                send(kind, Arrays.copyOfRange(bytes, start, start + length));
            }
        }
    }
}
