// A model that knows five answers. The words in the prompt decide which one it gives.

const ANSWERS = [
  [/streamlit/i, streamlitApp],
  [/next\.?js/i, nextApp],
  [/chart|plot|data/i, chart],
  [/fail|broken/i, brokenDependency],
]

export function scriptedFragment(prompt) {
  const [, answer] = ANSWERS.find(([words]) => words.test(prompt)) ?? [null, page]
  return answer(prompt)
}

const NO_DEPENDENCIES = {
  additional_dependencies: [],
  has_additional_dependencies: false,
  install_dependencies_command: '',
}

/** Several files, served by a command of the fragment. */
function page(prompt) {
  return {
    commentary: 'A page with a counter, as plain files.',
    title: 'Counter page',
    template: 'base',
    ...NO_DEPENDENCIES,
    port: 8000,
    file_path: 'index.html',
    start_command: 'python3 -m http.server 8000',
    code: [
      {
        file_path: 'index.html',
        file_content: `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Counter</title>
<link rel="stylesheet" href="page.css">
<h1>${escape(prompt)}</h1>
<button id="count">Clicked 0 times</button>
<script src="page.js"></script>
</html>
`,
      },
      {
        file_path: 'page.css',
        file_content: 'body { font: 20px system-ui; display: grid; place-items: center; min-height: 90vh; background: #eef6ff }\n',
      },
      {
        file_path: 'page.js',
        file_content: `const button = document.getElementById('count')
let count = 0
button.onclick = () => { button.textContent = \`Clicked \${++count} times\` }
`,
      },
    ],
  }
}

function chart() {
  return {
    commentary: 'A chart of a sine wave, drawn with matplotlib.',
    title: 'Sine wave',
    template: 'code-interpreter-v1',
    ...NO_DEPENDENCIES,
    port: null,
    file_path: 'script.py',
    code: `import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 2 * np.pi, 200)
plt.plot(x, np.sin(x))
plt.title("A sine wave")
print(f"{len(x)} points")
plt.show()
`,
  }
}

function streamlitApp(prompt) {
  return {
    commentary: 'A Streamlit app with a slider.',
    title: 'Slider',
    template: 'streamlit-developer',
    ...NO_DEPENDENCIES,
    port: 8501,
    file_path: 'app.py',
    code: `import streamlit as st

st.title(${JSON.stringify(prompt)})
number = st.slider("A number", 0, 100, 25)
st.write("Its square is", number * number)
`,
  }
}

function nextApp(prompt) {
  return {
    commentary: 'A Next.js page with a counter.',
    title: 'Next.js page',
    template: 'nextjs-developer',
    ...NO_DEPENDENCIES,
    port: 3000,
    file_path: 'pages/index.tsx',
    code: `import { useState } from 'react'

export default function Home() {
  const [count, setCount] = useState(0)
  return (
    <main>
      <h1>{${JSON.stringify(prompt)}}</h1>
      <button onClick={() => setCount(count + 1)}>Clicked {count} times</button>
    </main>
  )
}
`,
  }
}

/** Shows what the app makes of an error. */
function brokenDependency(prompt) {
  return {
    ...page(prompt),
    commentary: 'A page whose dependency does not exist.',
    has_additional_dependencies: true,
    install_dependencies_command: 'echo "no such package: does-not-exist" >&2; exit 1',
  }
}

function escape(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)
}
