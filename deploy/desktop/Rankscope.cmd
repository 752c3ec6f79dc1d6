@echo off
rem For Windows: double-click it. Starts Rankscope in WSL2, which opens the page in the browser of Windows.
title Rankscope
where wsl.exe >nul 2>nul
if errorlevel 1 goto nowsl
wsl.exe -e true >nul 2>nul
if errorlevel 1 goto nowsl
for /f "delims=" %%p in ('wsl.exe -e wslpath -a "%~dp0."') do set "HERE=%%p"
wsl.exe -e sh "%HERE%/start.sh" %*
if errorlevel 1 pause
exit /b
:nowsl
echo Rankscope runs in WSL2, the Linux of Windows, which is not set up on this PC yet. Three steps:
echo.
echo   1. Right-click the Start button, choose "Terminal (Admin)", type  wsl --install  and press Enter.
echo   2. Restart the PC. A window named Ubuntu opens: choose a user name and a password there.
echo   3. In that window type  sudo apt update ^&^& sudo apt install -y python3 python3-venv  and press Enter.
echo.
echo Then double-click this file again. An NVIDIA GPU needs only the driver of Windows.
pause
exit /b 1
